"""From results to the numbers that compare pipelines: matrix, composite model, score, cost (SIGMOD'25, section 3).

Raises: UnavailableError: pandas is not installed. Services, and commands that show no results, work without it.
"""

from importlib.util import find_spec

from modyn.errors import UnavailableError

if find_spec("pandas") is None:
    raise UnavailableError("results are tables of pandas, which is not installed: pip install 'modyn[analysis]' shows them")
