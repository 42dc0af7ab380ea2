from typing import Final

from fedlgd.core.errors import FedlgdError as FedlgdError
from fedlgd.core.train import Local as Local
from fedlgd.data.federation import Federation as Federation
from fedlgd.data.federation import from_arrays as from_arrays
from fedlgd.data.suites import from_folders as from_folders
from fedlgd.data.suites import load as load
from fedlgd.distill.settings import Distil as Distil
from fedlgd.methods.anchors import Anchored as Anchored
from fedlgd.methods.baselines import LocalOnly as LocalOnly
from fedlgd.methods.baselines import Pooled as Pooled
from fedlgd.methods.collabdm import CollabDM as CollabDM
from fedlgd.methods.desa import DeSA as DeSA
from fedlgd.methods.dynafed import DynaFed as DynaFed
from fedlgd.methods.fedaf import FedAF as FedAF
from fedlgd.methods.fedavg import FedAvg as FedAvg
from fedlgd.methods.fedbn import FedBN as FedBN
from fedlgd.methods.feddm import FedDM as FedDM
from fedlgd.methods.fedlap import FedLAP as FedLAP
from fedlgd.methods.fedlgd import FedLGD as FedLGD
from fedlgd.methods.fedmix import FedMix as FedMix
from fedlgd.methods.fedmix import NaiveMix as NaiveMix
from fedlgd.methods.fednova import FedNova as FedNova
from fedlgd.methods.fedproto import FedProtoAvg as FedProtoAvg
from fedlgd.methods.fedproto import FedProtoLocal as FedProtoLocal
from fedlgd.methods.fedprox import FedProx as FedProx
from fedlgd.methods.fedvck import FedVCK as FedVCK
from fedlgd.methods.moon import Moon as Moon
from fedlgd.methods.refine import Refined as Refined
from fedlgd.methods.regularisers import Regularised as Regularised
from fedlgd.methods.scaffold import Scaffold as Scaffold
from fedlgd.methods.vhl import VHL as VHL
from fedlgd.report.page import write_report as write_report
from fedlgd.runs.compare import compare as compare
from fedlgd.runs.config import configure as configure
from fedlgd.runs.result import Result as Result
from fedlgd.runs.result import open_run as open_run
from fedlgd.runs.run import run as run
from fedlgd.runs.tune import tune as tune

__version__: Final[str]
__all__: list[str]
