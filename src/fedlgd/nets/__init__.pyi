from fedlgd.core.net import Net as Net
from fedlgd.core.net import Output as Output
from fedlgd.core.types import Params as Params
from fedlgd.core.types import Shape as Shape
from fedlgd.core.types import Stream as Stream
from fedlgd.nets.builtin import ConvNet as ConvNet
from fedlgd.nets.builtin import ResNet18 as ResNet18
from fedlgd.nets.builtin import norm_layer as norm_layer
from fedlgd.nets.registry import build_net as build_net

__all__: list[str]
