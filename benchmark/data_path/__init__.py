"""The data path, figure by figure: `python -m benchmark.data_path a` … `l`, and `gpu`. Each runs both sides in turn and ends with the median ratio.

A figure is one module `figure_<letter>.py` here with a constant `FIGURE`; nothing else has to know of it:

    @contextmanager
    def prepare(setting: Setting) -> Iterator[list[Case]]:
        folder = make_files(setting.folder / "files", setting.samples)      # data of the figure, of exactly that size
        with installation(setting.folder) as services:                      # real PostgreSQL, storage and selector processes
            yield [
                Case("16 files", target=3.0, ours=Side("modyn", lambda ready: ingest(services, ready)), theirs=100_000.0, data=[folder]),
            ]

    FIGURE = Figure("e", "ingestion of 160-byte records", "samples/s", samples=5_000_000, smoke_samples=2_000, prepare=prepare)

- `prepare` makes the data below `setting.folder` (empty, deleted afterwards), starts what is needed, yields the cases and cleans up.
- A `Side` is one program. `run(ready)` gets itself ready, calls `ready()` exactly once, right before its clock starts (cold runs drop the page
  cache there), and returns `Measured(value, details)` in the figure's unit. It raises if what it did was not complete.
- `Case.theirs` is the other side, or a number where a published figure is what is compared with, or `Missing(why)` where a peer is not
  installed: such a case is reported and not measured. `theirs=None` measures without comparing.
- A cold run drops `Side.files`, or `Case.data` if it names none, after `Side.fresh` ended processes that hold maps of it. `cold=False` has its
  reason next to it.
- One `Side` object that stands in several cases runs once a round. Every second round goes from the last side to the first.
- Data of samples is laid out so that `contents` can check whether the right ones came.
- `more_is_better=False` for seconds and bytes: the ratio is then theirs / ours, so that a ratio of at least `target` is always what is wanted.
- `Figure.conclude` writes more files next to the report, or a paragraph into it.

Programs that must run in a process of their own (training processes, peers in their own environment): `side_process`. Services:
`installation`. The records of figures a, b, c and k: `records`. Importing a figure must not need torch or any peer.
"""
