"""A suite of a user, large enough for an audit."""

from dataclasses import dataclass

from fedlgd.data import Federation, SuiteSettings, setting
from tests import tiny


@dataclass(frozen=True, kw_only=True)
class Small(SuiteSettings):
    """Three sites with small images of three classes."""

    per_class: int = setting(40, "Training images of each class at each site.", least=1)

    def open(self) -> Federation:
        return tiny.federation(train=self.per_class, test=20)
