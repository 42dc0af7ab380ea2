"""What a user wrote. The examples are found as their user finds them: by a folder on the path."""

import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples" / "methods"
sys.path.append(str(EXAMPLES))
