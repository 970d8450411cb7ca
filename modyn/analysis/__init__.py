"""Results of runs, and the numbers that compare pipelines: matrix, composite model, score, cost (SIGMOD'25, section 3).

The import raises UnavailableError if pandas is not installed. Services, and commands that do not show results, work without pandas.
"""

from importlib.util import find_spec

from modyn.errors import UnavailableError

if find_spec("pandas") is None:
    raise UnavailableError("results are pandas tables, but pandas is not installed: pip install 'modyn[analysis]'")
