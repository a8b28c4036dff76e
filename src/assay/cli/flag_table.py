"""What `--help` shows and click needs, written by `make flag-table` from the classes of flags."""

from __future__ import annotations

from assay.cli.commands import FlagRow, VerbRow

# fmt: off
AS_JSON = FlagRow('as_json', opts='--json', style='switch', group='Output', help='Print the result as JSON.')
BASE = FlagRow('base', opts='--base', metavar='BRANCH', group='Options', help='Branch whose configuration gets the new values.')
COMMIT = FlagRow('commit', opts='--commit', metavar='SHA', group='Options', help='Commit that was measured.')
CONFIG = FlagRow('config', opts='--config', metavar='FILE', group='Options', help='Path of the configuration in the repository.  [default: configs/base.yaml]')
FAIL_ON_REGRESSION = FlagRow('fail_on_regression', opts='--fail-on-regression', style='switch', group='How to decide', help='Exit with code 1 on a regression.')
FILE = FlagRow('file', style='argument', metavar='FILE', group='Options', required=True)
GPU = FlagRow('gpu', opts='--gpu', metavar='NAME', group='Options', help='Only this GPU: part of its name or UUID.')
GPUS = FlagRow('gpus', opts='--gpus', style='list', metavar='0,1', group='Options', help='GPUs, by index or UUID.  [default: all]', item='\\d+|GPU-\\S+')
ORIGIN = FlagRow('origin', opts='--origin', metavar='[real|fake|simulated|all]', group='Options', help='Origin of the numbers.  [default: real]', choices=('real', 'fake', 'simulated', 'all'))
OUTPUT = FlagRow('output', opts='--output -o', metavar='DIR', group='Options', help='Folder of the report.  [default: next to the runs]')
OUTPUT_DIR = FlagRow('output_dir', opts='--output-dir', metavar='PATH', group='Output', help='Folder for run folders.  [default: runs]')
PERFETTO = FlagRow('perfetto', opts='--perfetto', metavar='FILE', group='Output', help='Also write a trace for ui.perfetto.dev.')
REPOSITORY = FlagRow('repository', opts='--repository', metavar='OWNER/NAME', group='Options', help='Repository.  [default: GITHUB_REPOSITORY]')
RESULTS = FlagRow('results', style='arguments', metavar='RESULTS...', group='Options', required=True)
RUNS = FlagRow('runs', style='arguments', metavar='RUN...', group='Options')
SEED = FlagRow('seed', opts='--seed', metavar='N', group='How to measure', help='Random seed.  [default: 0]')
SINCE_S = FlagRow('since_s', opts='--since', metavar='30d', group='Options', help='Only runs since a date, or within a period.')
THRESHOLDS = FlagRow('thresholds', opts='--thresholds', metavar='FILE', group='Options', help='Thresholds that may change.  [default: both NSA branches]')
TRUSTED = FlagRow('trusted', opts='--trusted', metavar='DIR', group='Options', help='Folder of --thresholds.  [default: here]')
UNSURE = FlagRow('unsure', opts='--unsure', metavar='[pass|fail]', group='How to decide', help='Gate result if inconclusive.  [default: pass]', choices=('pass', 'fail'))
WORKLOAD = FlagRow('workload', opts='--workload', metavar='NAME', group='Options', help='Only this workload, such as softmax@numpy.')

VERBS = {
    'compare': VerbRow(
        'assay.cli.compare',
        'Compare results with the first one, quantity by quantity.\n\nA RESULT is a run folder of any experiment, its findings.json, what --json printed, a result of `assay threshold`,\nor a file of the older tools. Two numbers are comparable only if workload, implementation, parameters,\nconfiguration, dtype, schedule, isolation, conditions, method and device model match; otherwise the difference is\nreported. Results of different device models are shown without a verdict.\n\n\x08\nassay compare runs/before runs/after\nassay compare runs/before runs/after --fail-on-regression --min-effect 5%\nassay compare t4.json l4.json a100.json -o gpus.md',
        (
            FlagRow('results', style='arguments', metavar='RESULT...', group='Options'),
            FlagRow('quantities', opts='--quantity', style='many', metavar='NAME', group='What to measure', help='Compare only this, such as call_us; repeatable.'),
            FlagRow('minimum_effect', opts='--min-effect', metavar='PERCENT', group='How to decide', help='Ignore effects smaller than this.  [default: 2%]'),
            FAIL_ON_REGRESSION,
            UNSURE,
            FlagRow('output', opts='--output -o', metavar='FILE', group='Output', help='Write the report as Markdown.'),
            AS_JSON,
        ),
    ),
    'contention variance': VerbRow(
        'assay.cli.contention_variance',
        'Compare times, spread and picked configurations of two groups of results.\n\nResults are run folders of `assay contention run` or `assay run`, their records.jsonl, or JSON files of older tools.\nFor a single run of `assay contention run`, its phases are compared with its baseline.\n\n\x08\nassay contention variance runs/latest\nassay contention variance runs/before runs/after\nassay contention variance baseline/*.json --against concurrent/*.json\nassay contention variance base0.json,base1.json conc0.json,conc1.json',
        (
            FlagRow('baseline', style='arguments', metavar='BASELINE...', group='Options'),
            FlagRow('against', opts='--against', style='rest', metavar='CONCURRENT...', group='Options', help='Results to compare with the baseline.', item='[^-].*'),
            FlagRow('phase', opts='--phase', metavar='[naive|isolated|again]', group='Options', help='Phase of `assay contention run` to compare with its baseline.  [default: naive]', choices=('naive', 'isolated', 'again')),
            FlagRow('minimum_effect', opts='--min-effect', metavar='PERCENT', group='Options', help='Ignore effects smaller than this.  [default: 1%]'),
            FlagRow('output', opts='--output -o', metavar='DIR', group='Options', help='Write report.md and report.html.'),
            AS_JSON,
        ),
    ),
    'doctor': VerbRow(
        'assay.cli.doctor',
        'Check this machine: hardware, isolation, sources of noise, and how to fix them.\n\nWith --gpus each of these GPUs is used: if one is missing, lost or refuses, the exit code is 3; otherwise a\nconfiguration for inference on them is printed.',
        (
            FlagRow('gpus', opts='--gpus', style='list', metavar='0,1', group='Options', help='Run a kernel on each of these GPUs.', item='\\d+'),
            AS_JSON,
        ),
    ),
    'energy check': VerbRow(
        'assay.cli.energy_check',
        'Check that the GPUs are present, compute, and are idle, before measuring.\n\nEach GPU is checked through NVML and with a PyTorch kernel. Usable GPUs are written into a configuration that limits\nthe model to 90 % of their memory. Exit code 3: no usable GPU.\n\n\x08\nassay energy check\nassay energy check --gpus 0,1 -o energy.yaml',
        (
            GPUS,
            FlagRow('output', opts='--output -o', metavar='FILE', group='Options', help='Write the configuration to a file.'),
            FlagRow('yes', opts='--yes', style='switch', group='Options', help='Overwrite an existing file.'),
            AS_JSON,
        ),
    ),
    'energy compare': VerbRow(
        'assay.cli.energy_compare',
        'Compare tokens/s and J/token across cells of `assay energy run`, with the Pareto front.\n\nRUN is a run folder, a folder of such folders, an energy.json, or a .csv file with appended rows; by default\nruns/latest. A cell is dominated only if another is faster and uses less energy, both beyond their intervals.\n\n\x08\nassay energy compare runs/latest\nassay energy compare llama-1b.csv llama-8b.csv --by model -o pareto.png\nassay energy compare runs/one-gpu runs/four-gpus --by placement -o out.html',
        (
            RUNS,
            FlagRow('by', opts='--by', metavar='FACTOR', group='Options', help='Compare the values of model, batch, placement, mode, gpu or run.  [default: what differs]', choices=('model', 'batch', 'placement', 'mode', 'gpu', 'run')),
            FlagRow('of', opts='--of', metavar='PHASE', group='Options', help='Tokens of: decode, prefill or requests.  [default: decode; requests if a server is included]', choices=('decode', 'prefill', 'requests')),
            FlagRow('outputs', opts='--output -o', style='many', metavar='PATH', group='Options', help='Write a .html, .md, .png or .json file, or a folder with all of them; repeatable.'),
            AS_JSON,
        ),
    ),
    'github comment': VerbRow(
        'assay.cli.github',
        'Post RESULTS on a pull request, also if some or all of them are missing.\n\nThere is one comment; later results replace it.\n\n\x08\nassay github comment results.json --pull-request 12 --dry-run\nassay github comment results --pull-request 12 --base main --gpu-types L4,A100',
        (
            RESULTS,
            FlagRow('pull_request', opts='--pull-request', metavar='N', group='Options', help='Number of the pull request.', required=True),
            FlagRow('gpu_types', opts='--gpu-types', metavar='L4,A100', group='Options', help='Requested GPU models; those without results are listed too.'),
            FlagRow('dry_run', opts='--dry-run', style='switch', group='Options', help='Show the comment only; --config is a local file.'),
            CONFIG,
            THRESHOLDS,
            TRUSTED,
            BASE,
            REPOSITORY,
            COMMIT,
        ),
    ),
    'github measure': VerbRow(
        'assay.cli.github',
        'Measure thresholds of SUBJECT, a checked-out commit, on a rented GPU; none of its code runs here.\n\nRuns `assay threshold run --on HOST`, and writes results.json, exit-code, rentals.jsonl, the report and the run to\n--output. A commit of Assay itself is measured with its own package.',
        (
            FlagRow('subject', style='argument', metavar='SUBJECT', group='Options', required=True),
            FlagRow('gpu_type', opts='--gpu-type', metavar='L4', group='Options', help='GPU model, a single one.', required=True),
            FlagRow('output', opts='--output -o', metavar='DIR', group='Options', help='Empty folder for the results.', required=True),
            FlagRow('thresholds', opts='--thresholds', metavar='FILE', group='Options', help='Thresholds file in the commit.  [default: both NSA branches]'),
            FlagRow('trusted', opts='--trusted', metavar='DIR', group='Options', help='Read --thresholds from this folder instead.'),
            FlagRow('on', opts='--on', metavar='HOST', group='Options', help='Where to rent the GPU.  [default: auto]'),
            FlagRow('max_cost_usd', opts='--max-cost', metavar='USD', group='Options', help='Rent nothing that may cost more than this.'),
            FlagRow('limit', opts='--time', metavar='30m', group='Options', help='Time limit of the job.  [default: 30m]'),
        ),
    ),
    'github pull-request': VerbRow(
        'assay.cli.github',
        'Open a pull request with new thresholds from RESULTS: JSON files of `assay threshold run --output`, or folders.\n\nOne pull request per device; an open one is updated. None is opened if nothing changes, if the results are\ninconclusive, or if the fast path failed its parity check (exit code 1).\n\n\x08\nassay github pull-request results.json --config configs/base.yaml --dry-run\nassay github pull-request results --base main',
        (
            RESULTS,
            FlagRow('dry_run', opts='--dry-run', style='switch', group='Options', help='Show the pull request only; --config is a local file.'),
            CONFIG,
            THRESHOLDS,
            TRUSTED,
            BASE,
            REPOSITORY,
            COMMIT,
        ),
    ),
    'github request': VerbRow(
        'assay.cli.github',
        "Decide whether this workflow event requests a measurement, and set the outputs for the next jobs.\n\nReads the environment that GitHub sets; ASSAY_GPU_TYPE, ASSAY_CREATE_PR and ASSAY_DEFAULT_GPU are the workflow's\ninputs. Writes go, gpu_types, repository, commit, branch, pull_request and create_pr to GITHUB_OUTPUT.\n\nExit code 2: invalid request. Exit code 3: the author lacks permission.",
        (
            FlagRow('as_json', opts='--json', style='switch', group='Options', help='Print the request as JSON.'),
        ),
    ),
    'history export': VerbRow(
        'assay.cli.history',
        'Export every point with its run and series to FILE; - is stdout.\n\n\x08\nassay history export history.csv\nassay history export --workload softmax --since 90d softmax.json',
        (
            FILE,
            FlagRow('as_csv', opts='--csv', style='switch', group='Options', help='Write a CSV table.  [default: unless FILE ends in .json]'),
            FlagRow('as_json', opts='--json', style='switch', group='Options', help='Write runs, series and points as JSON.'),
            WORKLOAD,
            GPU,
            SINCE_S,
            ORIGIN,
        ),
    ),
    'history import': VerbRow(
        'assay.cli.history',
        'Import the finished runs in folders and their subfolders into the history.\n\nA run that is already imported is skipped unless it was resumed since. Unreadable folders are reported and the rest\nis imported; if a folder is damaged, the exit code is 2 and its stored points are kept.\n\n\x08\nassay history import runs\nassay history import --rebuild runs /data/older-runs',
        (
            FlagRow('folders', style='arguments', metavar='DIR...', group='Options', required=True),
            FlagRow('rebuild', opts='--rebuild', style='switch', group='Options', help='Delete the history and import these runs.'),
            FlagRow('yes', opts='--yes', style='switch', group='Options', help='With --rebuild: also drop runs whose folders are missing.'),
            AS_JSON,
        ),
    ),
    'history list': VerbRow(
        'assay.cli.history',
        'List runs, newest first, or with --series what they measured repeatedly.\n\n\x08\nassay history list --since 30d\nassay history list --workload softmax --series',
        (
            FlagRow('as_series', opts='--series', style='switch', group='Options', help='List series with their keys instead of runs.'),
            FlagRow('limit', opts='--limit', metavar='N', group='Options', help='Maximum number of runs.  [default: 20]'),
            WORKLOAD,
            GPU,
            SINCE_S,
            FlagRow('origin', opts='--origin', metavar='[real|fake|simulated|all]', group='Options', help='Origin of the numbers.  [default: all]', choices=('real', 'fake', 'simulated', 'all')),
            AS_JSON,
        ),
    ),
    'history plot': VerbRow(
        'assay.cli.history',
        'Plot a series over time with its confidence intervals, and list its points.\n\nKEY is the key of a series, a prefix of it, or words that identify it.\n\n\x08\nassay history plot softmax@numpy call_us rows=4096\nassay history plot 3f2a91c04b7d -o softmax.png',
        (
            FlagRow('name', style='arguments', metavar='KEY', group='Options', required=True),
            FlagRow('output', opts='--output -o', metavar='FILE', group='Options', help='Write .html or .png.  [default: history-KEY.html]'),
            ORIGIN,
        ),
    ),
    'history regressions': VerbRow(
        'assay.cli.history',
        'Report the run and commit that made something slower or faster, in all series.\n\nEach change point is reported with its first run and commit, its size with an interval, and what else changed:\nwith a new host or driver it is confounded, and not a regression.\n\n\x08\nassay history regressions\nassay history regressions --workload softmax -o changes.html\nassay history regressions --new-since 7d --fail-on-regression',
        (
            FlagRow('quantity', opts='--quantity', metavar='NAME', group='Options', help='Only this quantity, such as call_us.'),
            FlagRow('new_since_s', opts='--new-since', metavar='14d', group='Options', help='Only changes since a date, or within a period.'),
            WORKLOAD,
            GPU,
            SINCE_S,
            ORIGIN,
            FlagRow('fdr', opts='--fdr', metavar='PERCENT', group='How to decide', help='False-discovery rate.  [default: 5%]'),
            FlagRow('minimum_effect', opts='--min-effect', metavar='PERCENT', group='How to decide', help='Ignore effects smaller than this.  [default: 1%]'),
            FAIL_ON_REGRESSION,
            FlagRow('output', opts='--output -o', metavar='FILE', group='Output', help='Write the report as .html or .md.'),
            AS_JSON,
        ),
    ),
    'history show': VerbRow(
        'assay.cli.history',
        'Show the points of a series or the results of a run.\n\nA KEY is the key of a series, a prefix of it, or words that identify it: a workload, a quantity, a\nparameter. A RUN is its id, its folder, or "latest".\n\n\x08\nassay history show latest\nassay history show softmax@numpy call_us rows=4096',
        (
            FlagRow('name', style='arguments', metavar='KEY|RUN', group='Options', required=True),
            ORIGIN,
            AS_JSON,
        ),
    ),
    'list': VerbRow(
        'assay.cli.runs',
        'List workloads, devices and runs, or only one of these kinds.',
        (
            FlagRow('kinds', style='arguments', metavar='[workloads|devices|runs]...', group='Options', choices=('workloads', 'devices', 'runs')),
            OUTPUT_DIR,
            AS_JSON,
        ),
    ),
    'monitor': VerbRow(
        'assay.cli.monitor',
        'Record GPU and host sensors, for a while or while a command runs.\n\nOUT ends in .jsonl, .json or .csv; an existing recording is replaced.\n\n\x08\nassay monitor gpu.jsonl --duration 5m\nassay monitor gpu.csv --gpus 0,1 --interval 50ms -- python train.py',
        (
            FlagRow('out', style='argument', metavar='OUT [-- COMMAND...]', group='Options', required=True),
            FlagRow('duration_s', opts='--duration', metavar='TIME', group='Options', help='How long to record.  [default: until stopped, or COMMAND ends]'),
            FlagRow('interval_s', opts='--interval', metavar='TIME', group='Options', help='Sampling interval.  [default: 0.1s]'),
            GPUS,
            FlagRow('gpu_only', opts='--gpu-only', style='switch', group='Options', help='Record GPUs only.'),
            FlagRow('host_only', opts='--host-only', style='switch', group='Options', help='Record the host only.'),
            FlagRow('perfetto', opts='--perfetto', metavar='FILE', group='Options', help='Also write a trace for ui.perfetto.dev.'),
            FlagRow('as_json', opts='--json', style='switch', group='Options', help='Print the statistics as JSON.'),
        ),
    ),
    'power budget': VerbRow(
        'assay.cli.power_analysis',
        'Find the power limits with the most throughput under a power budget; sets nothing.\n\nRUN is a run folder of `assay power sweep --limits`, a folder of such folders, or a .jsonl or .csv file of their\nrows; by default runs/latest. GPUs that were only characterized get the median curve of their model.\n\n\x08\nassay power budget --watts 2400 runs/latest\nassay power budget --watts 10200 --overhead 1800 --min-share 70% rack7',
        (
            RUNS,
            FlagRow('watts', opts='--watts', metavar='W', group='Options', help='Power budget of the node or rack.', required=True),
            FlagRow('overhead_w', opts='--overhead', metavar='W', group='Options', help='Watts not available to the GPUs.'),
            FlagRow('min_share', opts='--min-share', metavar='PERCENT', group='Options', help='Keep every GPU at this share of its full rate.'),
            FlagRow('workload', opts='--workload', metavar='NAME', group='Options', help='Workload, if several were swept.'),
            OUTPUT,
            AS_JSON,
        ),
    ),
    'power variability': VerbRow(
        'assay.cli.power_analysis',
        'Find GPUs that are slow, hot or power-hungry, and which to request instead.\n\nRUN is a run folder of `assay power characterize`, a folder of such folders (a fleet), or a .jsonl or .csv file of\ntheir rows; by default runs/latest. Unreadable files are reported and skipped.\n\n\x08\nassay power variability runs/latest\nassay power variability runs\nassay power variability fleet/rack1 fleet/rack2 -o fleet/report',
        (
            RUNS,
            FlagRow('minimum_effect', opts='--min-effect', metavar='PERCENT', group='Options', help='Ignore effects smaller than this.  [default: 2%]'),
            FlagRow('racks', opts='--racks', metavar='FILE', group='Options', help='CSV of host,rack, for runs without a rack.'),
            OUTPUT,
            AS_JSON,
        ),
    ),
    'reap': VerbRow(
        'assay.cli.rentals',
        'Clean up after crashed runs: processes, changed limits, rented machines.\n\nSafe at any time: running runs are left alone. Machines rented by Assay that are past their deadline are terminated,\nwhoever rented them, at every provider whose credentials are set.',
        (
            AS_JSON,
        ),
    ),
    'rentals': VerbRow(
        'assay.cli.rentals',
        'List rented machines, since when and until when, and their quoted and billed cost.\n\nAsks every provider whose credentials are set; ended rentals of this month come from the journal. `assay reap` ends\nabandoned machines.',
        (
            AS_JSON,
        ),
    ),
    'report': VerbRow(
        'assay.cli.runs',
        'Redraw the report of a run from its records, or of a recording of `assay monitor`.\n\nRUN is a run folder, a fleet or a recording; by default runs/latest.',
        (
            FlagRow('run', style='argument', metavar='[RUN]', group='Options', help='[default: runs/latest]'),
            PERFETTO,
            AS_JSON,
        ),
    ),
    'scaling analyse': VerbRow(
        'assay.cli.scaling_analyse',
        'Report on results of `assay scaling run` or of the older tool, and apply a gate.\n\nRESULTS is a run folder, a folder of runs, a latest.json, or a folder of such JSON files; by default runs/latest.\n\n\x08\nassay scaling analyse runs/latest\nassay scaling analyse benchmark_results --min-efficiency 0.7 --unsure fail',
        (
            FlagRow('results', style='argument', metavar='RESULTS', group='Options'),
            FlagRow('results_dir', opts='--results-dir', metavar='PATH', group='Options', hidden=True),
            FlagRow('min_efficiency', opts='--min-efficiency', metavar='PERCENT', group='How to decide', help='Exit with code 1 below this efficiency.'),
            UNSURE,
            FlagRow('output', opts='--output -o', metavar='DIR', group='Output', help='Folder of the files.  [default: RESULTS]'),
            AS_JSON,
        ),
    ),
    'scaling test': VerbRow(
        'assay.cli.scaling_test',
        'Check outputs, gradients and bytes sent between ranks in float64 on a small problem.\n\nExit code 0: all checks passed. 1: a check failed. 3: PyTorch is not installed.\n\n\x08\nassay scaling test\nassay scaling test --nproc 2\ntorchrun --nproc_per_node=2 -m assay scaling test',
        (
            FlagRow('nproc', opts='--nproc', metavar='N', group='Options', help='Ranks.  [default: 1, or those of torchrun]'),
            FlagRow('gpus', opts='--gpus', style='list', metavar='0,1', group='Options', help='GPUs, by index or UUID.  [default: one per rank]', item='\\d+(/\\d+)?|(GPU|MIG)-\\S+'),
            FlagRow('devices', opts='--device', style='list', metavar='cpu', group='Options', help='Devices: cpu, cpu:0, cuda:1.', item='(cpu|cuda)(:\\d+(/\\d+)?)?'),
            FlagRow('timeout_s', opts='--timeout', metavar='TIME', group='Options', help='Worker response timeout.  [default: 2m]'),
            FlagRow('seed', opts='--seed', metavar='N', group='Options', help='Random seed.  [default: 0]'),
            AS_JSON,
        ),
    ),
    'threshold apply': VerbRow(
        'assay.cli.threshold_results',
        'Decide from RESULTS, a run folder or a JSON file, and write the configuration; measures nothing.\n\nExit code 1: the fast path failed its parity check; nothing is written.\n\n\x08\nassay threshold apply runs/latest --config configs/base.yaml\nassay threshold apply results.json --safety-margin 1.5 --dry-run',
        (
            FlagRow('results', style='argument', metavar='RESULTS', group='Options', required=True),
            FlagRow('config', opts='--config', metavar='FILE', group='Options', help='Configuration to update.  [default: configs/base.yaml]'),
            FlagRow('safety_margin', opts='--safety-margin', metavar='X', group='Options', help='1.2, or conservative, balanced, aggressive.  [default: as measured]'),
            FlagRow('decide_on', opts='--decide-on', metavar='[call|span|cautious]', group='Options', help='Time that decides.  [default: as measured]', choices=('call', 'span', 'cautious')),
            FlagRow('update', opts='--update-config/--dry-run', style='switch', group='Options', help='Write the thresholds, or only show them.'),
            AS_JSON,
        ),
    ),
    'threshold parse': VerbRow(
        'assay.cli.threshold_results',
        'Convert the output of an older benchmark to JSON.\n\nFILE is a text file, or - for stdin, with lines such as\n\n\x08\nS=256 w=32 sliding masked 0.12 ms  fa2 0.10 ms  speedup x1.20\nS=256 l=32 d=16 compressed masked 0.12 ms  fa2 0.10 ms  speedup x1.20\n\n`assay threshold apply` and `assay compare` accept the result. Parity and GPU are not part of such lines and stay\nnull.',
        (
            FILE,
            FlagRow('output', opts='--output -o', metavar='FILE', group='Options', help='Write to a file.  [default: stdout]'),
        ),
    ),
    'time': VerbRow(
        'assay.cli.time',
        'Time a function or workload, or compare several with the first.\n\nA TARGET is file.py:function, package.module:function, or a workload such as softmax or softmax@numpy.\nEach fresh process is one sample; the confidence interval covers the mean over process starts.\n\n\x08\nassay time path/to/file.py:function\nassay time old.py:work new.py:work\nassay time softmax --device cpu --param rows=4096',
        (
            FlagRow('targets', style='arguments', metavar='TARGET...', group='Options'),
            FlagRow('params', opts='--param', style='many', metavar='NAME=VALUE', group='What to measure', help='Set a parameter of the targets.'),
            FlagRow('device', opts='--device', metavar='cpu', group='What to measure', help='cpu, cuda or cuda:1.  [default: a GPU if a target uses one]'),
            FlagRow('cache', opts='--cache', metavar='[cold|warm]', group='How to measure', help='GPU L2 cache before each call.  [default: cold]', choices=('cold', 'warm')),
            FlagRow('method', opts='--method', metavar='METHOD', group='How to measure', help='GPU timer: auto, graph, queue, trace or wall.  [default: auto]', choices=('auto', 'graph', 'queue', 'trace', 'wall')),
            FlagRow('precision', opts='--precision', metavar='PERCENT', group='How to measure', help='Stop at this precision (one target).  [default: 1%]'),
            FlagRow('processes', opts='--processes', metavar='N', group='How to measure', help='Number of fresh processes.  [default: 5]'),
            FlagRow('budget_s', opts='--budget', metavar='TIME', group='How to measure', help='Total time.  [default: 30s on a GPU, else 10s]'),
            FlagRow('decide_on', opts='--decide-on', metavar='[busy|span|call]', group='How to measure', help='Time that decides between several targets.', choices=('busy', 'span', 'call')),
            FlagRow('minimum_effect', opts='--min-effect', metavar='PERCENT', group='How to measure', help='Ignore effects smaller than this.  [default: 1%]'),
            FlagRow('timeout_s', opts='--timeout', metavar='TIME', group='How to measure', help='Time limit for a single call.  [default: 1m]'),
            FlagRow('lock_mhz', opts='--lock-clock', metavar='MHZ', group='How to measure', help='Lock the GPU clock while timing.'),
            SEED,
            AS_JSON,
        ),
    ),
    'trace': VerbRow(
        'assay.cli.trace',
        'Trace every kernel of a workload, with clocks, power and counters.\n\nA WORKLOAD is one of `assay list`, such as softmax or softmax@torch, or file.py:function.\n\n\x08\nassay trace softmax\nassay trace path/to/file.py:function --gpus 1 --calls 3\nassay trace softmax@numpy --device cpu --csv kernels.csv',
        (
            FlagRow('workload', style='argument', metavar='WORKLOAD', group='Options', required=True),
            FlagRow('params', opts='--param', style='many', metavar='NAME=VALUE', group='What to measure', help='Set a workload parameter.'),
            FlagRow('gpus', opts='--gpus', style='list', metavar='0', group='What to measure', help='GPU, by index or UUID.  [default: the first]', item='\\d+(/\\d+)?|(GPU|MIG)-\\S+'),
            FlagRow('device', opts='--device', metavar='cpu', group='What to measure', help='cpu, cuda or cuda:1.  [default: a GPU if present]'),
            FlagRow('calls', opts='--calls', metavar='N', group='How to measure', help='Calls to trace, back to back.  [default: 10]'),
            FlagRow('warmup', opts='--warmup', metavar='N', group='How to measure', help='Warm-up calls.  [default: 3]'),
            FlagRow('counters', opts='--counters', metavar='[auto|ncu|none]', group='How to measure', help='Read hardware counters with ncu; `ncu` fails if they cannot be read.  [default: auto]', choices=('auto', 'ncu', 'none')),
            FlagRow('timeout_s', opts='--timeout', metavar='TIME', group='How to measure', help='Time limit for the calls and for ncu.  [default: 2m]'),
            SEED,
            FlagRow('csv', opts='--csv', metavar='FILE', group='Output', help='Also write the kernels as CSV.'),
            PERFETTO,
            OUTPUT_DIR,
            FlagRow('print_commands', opts='--print-commands', style='switch', group='Output', help='Only print command lines for ncu and nsys.'),
            AS_JSON,
        ),
    ),
}
