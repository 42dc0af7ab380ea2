from fedlgd.core.homes import data_home as data_home
from fedlgd.core.settings import setting as setting
from fedlgd.core.types import LabelledSet as LabelledSet
from fedlgd.core.types import Scale as Scale
from fedlgd.core.types import Site as Site
from fedlgd.core.types import Stream as Stream
from fedlgd.data.federation import Federation as Federation
from fedlgd.data.federation import from_arrays as from_arrays
from fedlgd.data.federation import from_sites as from_sites
from fedlgd.data.suites import SuiteSettings as SuiteSettings
from fedlgd.data.suites import from_folders as from_folders
from fedlgd.data.suites import load as load

__all__: list[str]
