"""What `--help` shows and click needs, written by `make flag-table` from the classes of flags."""

from __future__ import annotations

from assay.cli.commands import FlagRow, VerbRow

# fmt: off
ACCOUNT = FlagRow('account', opts='--account', metavar='NAME', group='Slurm', help='Account.')
AS_JSON = FlagRow('as_json', opts='--json', style='switch', group='Output', help='Print the result as JSON.')
BACKEND = FlagRow('backend', opts='--backend', metavar='NAME', group='What to measure', help='Attention backend.  [default: auto]')
BASE = FlagRow('base', opts='--base', metavar='BRANCH', group='Options', help='Branch whose configuration gets the new values.')
BATCH_SIZE = FlagRow('batch_size', opts='--batch-size', metavar='N', group='What to measure', help='Sequences per ring.  [default: 2; 1 on a CPU]', envvar='BATCH_SIZE')
BENCHMARK_RUNS = FlagRow('benchmark_runs', opts='--benchmark-runs', metavar='N', group='How to measure', help='Timed calls.  [default: 10]', envvar='BENCHMARK_RUNS')
BUDGET_S = FlagRow('budget_s', opts='--budget', metavar='TIME', group='How to measure', help='Total time; shortens trials, drops repeats.')
CACHE = FlagRow('cache', opts='--cache', metavar='[cold|warm]', group='How to measure', help='GPU L2 cache before each call.  [default: cold]', choices=('cold', 'warm'))
CAUSAL = FlagRow('causal', opts='--causal', style='switch', group='What to measure', help='Use a causal mask.')
COMMIT = FlagRow('commit', opts='--commit', metavar='SHA', group='Options', help='Commit that was measured.')
CONFIG = FlagRow('config', opts='--config', metavar='FILE', group='Options', help='Path of the configuration in the repository.  [default: configs/base.yaml]')
COOLDOWN_S = FlagRow('cooldown_s', opts='--cooldown', metavar='TIME', group='How to measure', help='Pause between trials.')
CPU_GROUPS = FlagRow('cpu_groups', opts='--cpu-groups', metavar='N', group='What to measure', help='Split the cores into this many groups (one device each).  [default: 1]')
CPU_GROUPS_2 = FlagRow('cpu_groups', opts='--cpu-groups', metavar='N', group='What to measure', help='Split the cores into this many groups (one device each).  [default: 2]')
DEVICES = FlagRow('devices', opts='--device', style='list', metavar='cpu', group='What to measure', help='Devices: cpu, cpu:0, cuda:1.', item='(cpu|cuda)(:\\d+(/\\d+)?)?')
DILATION_RATES = FlagRow('dilation_rates', opts='--dilation-rates', style='list', metavar='R...', group='What to measure', help='Dilation rates.  [default: 1 2 4]', item='[+-]?\\d+')
DRY_RUN = FlagRow('dry_run', opts='--dry-run', style='switch', group='Output', help='Show what would be measured, then exit.')
DTYPE = FlagRow('dtype', opts='--dtype', metavar='DTYPE', group='What to measure', help='Data type.  [default: float16]')
EMBED_DIM = FlagRow('embed_dim', opts='--embed-dim', metavar='N', group='What to measure', help='Embedding dimension.  [default: 768]', envvar='EMBED_DIM')
FAIL_ON_REGRESSION = FlagRow('fail_on_regression', opts='--fail-on-regression', style='switch', group='How to decide', help='Exit with code 1 on a regression.')
FILE = FlagRow('file', style='argument', metavar='FILE', group='Options', required=True)
GPU = FlagRow('gpu', opts='--gpu', metavar='NAME', group='Options', help='Only this GPU: part of its name or UUID.')
GPU_TYPE = FlagRow('gpu_type', opts='--gpu-type', metavar='L4', group='Rented GPUs', help='GPU model; T4,L4 rents one of each.')
GPUS = FlagRow('gpus', opts='--gpus', style='list', metavar='0', group='What to measure', help='GPU, by index or UUID.  [default: the first]', item='\\d+(/\\d+)?|(GPU|MIG)-\\S+')
GPUS_2 = FlagRow('gpus', opts='--gpus', style='list', metavar='0,1', group='Options', help='GPUs, by index or UUID.  [default: all]', item='\\d+|GPU-\\S+')
GPUS_3 = FlagRow('gpus', opts='--gpus', style='list', metavar='0,1', group='What to measure', help='GPUs, by index or UUID.  [default: all]', item='\\d+(/\\d+)?|(GPU|MIG)-\\S+')
GPUS_4 = FlagRow('gpus', opts='--gpus', style='list', metavar='0,1', group='What to measure', help='GPUs, by index or UUID.  [default: one]', item='\\d+(/\\d+)?|(GPU|MIG)-\\S+')
GPUS_PER_NODE = FlagRow('gpus_per_node', opts='--gpus-per-node', metavar='[TYPE:]N', group='Slurm', help='GPUs per node.')
GRES = FlagRow('gres', opts='--gres', metavar='gpu:4', group='Slurm', help='Generic resources per node.')
HISTORY = FlagRow('history', opts='--history/--no-history', style='switch', group='Monitoring and history', help='Save the results in the history.')
IMAGE = FlagRow('image', opts='--image', metavar='TEXT', group='Rented GPUs', help='Image for the rented machine.')
ISOLATION = FlagRow('isolation', opts='--isolation', metavar='LEVEL', group='How to measure', help='none, gpu, cpu, numa or full.  [default: full]', choices=('none', 'gpu', 'cpu', 'numa', 'full'))
MAX_COST = FlagRow('max_cost', opts='--max-cost', metavar='USD', group='Rented GPUs', help='Rent nothing that may cost more than this.')
METRICS = FlagRow('metrics', opts='--metric', style='many', metavar='NAME=REGEX', group='What to measure', help='Read a number that the command prints.')
MIN_EFFICIENCY = FlagRow('min_efficiency', opts='--min-efficiency', metavar='PERCENT', group='How to decide', help='Exit with code 1 below this efficiency.')
MINIMUM_EFFECT = FlagRow('minimum_effect', opts='--min-effect', metavar='PERCENT', group='How to decide', help='Ignore effects smaller than this.  [default: 2%]')
MINIMUM_EFFECT_2 = FlagRow('minimum_effect', opts='--min-effect', metavar='PERCENT', group='How to measure', help='Ignore effects smaller than this.  [default: 1%]')
MONITOR = FlagRow('monitor', opts='--monitor/--no-monitor', style='switch', group='Monitoring and history', help='Record GPU and host sensors during the run.')
MONITOR_INTERVAL_S = FlagRow('monitor_interval_s', opts='--monitor-interval', metavar='TIME', group='Monitoring and history', help='Sampling interval.  [default: 50ms on GPUs]')
NAME_HOST = FlagRow('name_host', opts='--name-host', style='switch', group='Output', help='Record the hostname in machine.json.')
NO_FLASH = FlagRow('no_flash', opts='--no-flash-attention', style='switch', group='What to measure', hidden=True)
NODES = FlagRow('nodes', opts='--nodes', metavar='N', group='Remote machines', help='Number of nodes.  [default: 1]')
NPROC = FlagRow('nproc', opts='--nproc', metavar='N', group='Remote machines', help='Processes per node.  [default: its GPUs, or 1]')
NUM_HEADS = FlagRow('num_heads', opts='--num-heads', metavar='N', group='What to measure', help='Query heads.  [default: 12]', envvar='NUM_HEADS')
NUM_KV_HEADS = FlagRow('num_kv_heads', opts='--num-kv-heads', metavar='N', group='What to measure', help='Key-value heads.  [default: --num-heads]')
OFFSET = FlagRow('offset', opts='--offset', metavar='RULE', group='What to measure', help='Position rule: modulo or blocks.')
ON = FlagRow('on', opts='--on', metavar='HOST', group='Remote machines', help='local, ssh:HOST, slurm, modal, runpod, lambda or auto.  [default: local]')
ON_INTERFERENCE = FlagRow('on_interference', opts='--on-interference', metavar='ACTION', group='How to measure', help='What to do when other processes use the machine: warn, refuse or wait.  [default: warn]', choices=('warn', 'refuse', 'wait'))
OPTIONS_FILE = FlagRow('options_file', opts='--options', metavar='PATH', group='How to measure', help='Read options from a YAML or JSON file.')
ORIGIN = FlagRow('origin', opts='--origin', metavar='[real|fake|simulated|all]', group='Options', help='Origin of the numbers.  [default: real]', choices=('real', 'fake', 'simulated', 'all'))
OUTPUT = FlagRow('output', opts='--output -o', metavar='DIR', group='Options', help='Folder of the report.  [default: next to the runs]')
OUTPUT_DIR = FlagRow('output_dir', opts='--output-dir', metavar='PATH', group='Output', help='Folder for run folders.  [default: runs]')
PARAMS = FlagRow('params', opts='--param', style='many', metavar='NAME=VALUE', group='What to measure', help='Set a workload parameter.')
PARTITION = FlagRow('partition', opts='--partition', metavar='NAME', group='Slurm', help='Partition, as in --on slurm:NAME.')
PERFETTO = FlagRow('perfetto', opts='--perfetto', metavar='FILE', group='Output', help='Also write a trace for ui.perfetto.dev.')
REMOTE_PYTHON = FlagRow('remote_python', opts='--remote-python', metavar='PATH', group='Remote machines', help='Interpreter on the host.  [default: this one on Slurm, else python3]')
REPOSITORY = FlagRow('repository', opts='--repository', metavar='OWNER/NAME', group='Options', help='Repository.  [default: GITHUB_REPOSITORY]')
RESULTS = FlagRow('results', style='arguments', metavar='RESULTS...', group='Options', required=True)
RETAKES = FlagRow('retakes', opts='--retake-disturbed', metavar='N', group='How to measure', help='Retakes of a disturbed trial.  [default: 0]')
RUN = FlagRow('run', style='argument', metavar='[RUN]', group='Options', help='[default: runs/latest]')
RUNS = FlagRow('runs', style='arguments', metavar='RUN...', group='Options')
SBATCH_ARGS = FlagRow('sbatch_args', opts='--sbatch-arg', style='many', metavar='--OPT=VALUE', group='Slurm', help='Extra argument for sbatch.')
SEED = FlagRow('seed', opts='--seed', metavar='N', group='How to measure', help='Random seed.  [default: 0]')
SEGMENT_LENGTHS = FlagRow('segment_lengths', opts='--segment-lengths', style='list', metavar='W...', group='What to measure', help='Segment lengths.  [default: 2048 4096 8192]', item='[+-]?\\d+')
SEQ_LENGTHS = FlagRow('seq_lengths', opts='--seq-lengths', style='list', metavar='N...', group='What to measure', help='Sequence lengths.  [default: 16384 32768 65536]', item='[+-]?\\d+', envvar='SEQ_LENGTHS')
SHIP = FlagRow('ship', opts='--ship', style='many', metavar='PATH', group='Remote machines', help='Extra file or folder to upload; paths on the command line are uploaded automatically.')
SINCE_S = FlagRow('since_s', opts='--since', metavar='30d', group='Options', help='Only runs since a date, or within a period.')
THRESHOLDS = FlagRow('thresholds', opts='--thresholds', metavar='FILE', group='Options', help='Thresholds that may change.  [default: both NSA branches]')
TIME = FlagRow('time', opts='--time', metavar='30m', group='Remote machines', help='Time limit of the job.')
TIMEOUT_S = FlagRow('timeout_s', opts='--timeout', metavar='TIME', group='How to measure', help='Worker response timeout.  [default: 10m]')
TIMEOUT_S_2 = FlagRow('timeout_s', opts='--timeout', metavar='TIME', group='How to measure', help='Worker response timeout.  [default: 2m]')
TRUSTED = FlagRow('trusted', opts='--trusted', metavar='DIR', group='Options', help='Folder of --thresholds.  [default: here]')
UNSURE = FlagRow('unsure', opts='--unsure', metavar='[pass|fail]', group='How to decide', help='Gate result if inconclusive.  [default: pass]', choices=('pass', 'fail'))
WARMUP_RUNS = FlagRow('warmup_runs', opts='--warmup-runs', metavar='N', group='How to measure', help='Warm-up calls.  [default: 3]', envvar='WARMUP_RUNS')
WEAK = FlagRow('weak', opts='--weak/--strong', style='switch', group='What to measure', help='Grow the problem with ranks, or fix it.')
WORKLOAD = FlagRow('workload', opts='--workload', metavar='NAME', group='Options', help='Only this workload, such as softmax@numpy.')

VERBS = {
    'compare': VerbRow('assay.cli.compare', 'Compare results with the first one, quantity by quantity.\n\nA RESULT is a run folder of any experiment, its findings.json, what --json printed, a result of `assay threshold`,\nor a file of the older tools. Two numbers are comparable only if workload, implementation, parameters,\nconfiguration, dtype, schedule, isolation, conditions, method and device model match; otherwise the difference is\nreported. Results of different device models are shown without a verdict.\n\n\x08\nassay compare runs/before runs/after\nassay compare runs/before runs/after --fail-on-regression --min-effect 5%\nassay compare t4.json l4.json a100.json -o gpus.md', (
        FlagRow('results', style='arguments', metavar='RESULT...', group='Options'),
        FlagRow('quantities', opts='--quantity', style='many', metavar='NAME', group='What to measure', help='Compare only this, such as call_us; repeatable.'),
        MINIMUM_EFFECT, FAIL_ON_REGRESSION, UNSURE,
        FlagRow('output', opts='--output -o', metavar='FILE', group='Output', help='Write the report as Markdown.'),
        AS_JSON,
    )),
    'contention matrix': VerbRow('assay.cli.contention', 'Measure every victim against every aggressor, with and without isolation.\n\n\x08\nassay contention matrix\nassay contention matrix --device cpu:0 --victim softmax --aggressor cpu memory\nassay contention matrix --gpus 0 --aggressor cpu pcie hbm --budget 10m', (
        FlagRow('victims', opts='--victim', style='list', metavar='NAME...', group='What to measure', help='Workloads to time.', item='[^-\\s]\\S*'),
        FlagRow('aggressors', opts='--aggressor', style='list', metavar='NAME...', group='What to measure', help='Concurrent loads: cpu, memory, pcie, sm, hbm, or any workload.  [default: all that fit]', item='[^-\\s]\\S*'),
        FlagRow('params', opts='--param', style='many', metavar='NAME=VALUE', group='What to measure', help='Set a parameter of the victims.'),
        GPUS_4, DEVICES, CPU_GROUPS_2,
        FlagRow('duration_s', opts='--duration', metavar='TIME', group='How to measure', help='Time per trial, without startup.  [default: 2s]'),
        FlagRow('repeat', opts='--repeat', metavar='N', group='How to measure', help='Number of blocks.  [default: 6]'),
        FlagRow('budget_s', opts='--budget', metavar='TIME', group='How to measure', help='Total time; shortens trials, drops blocks.'),
        COOLDOWN_S,
        FlagRow('minimum_effect', opts='--min-effect', metavar='PERCENT', group='How to measure', help='Ignore effects smaller than this.  [default: 2%]'),
        FlagRow('in_turns', opts='--interleave', style='switch', group='How to measure', help='Time all victims in one process, interleaved.'),
        FlagRow('quick', opts='--quick', style='switch', group='How to measure', help='Quick first look: 0.5s per trial, 3 blocks.'),
        CACHE, SEED, ON_INTERFERENCE, RETAKES, TIMEOUT_S_2, OPTIONS_FILE, OUTPUT_DIR, NAME_HOST, DRY_RUN, AS_JSON,
        MONITOR, MONITOR_INTERVAL_S, HISTORY, ON, TIME, NODES, NPROC, SHIP, REMOTE_PYTHON, PARTITION, ACCOUNT, GRES,
        GPUS_PER_NODE, SBATCH_ARGS, GPU_TYPE, IMAGE, MAX_COST,
    )),
    'contention run': VerbRow('assay.cli.contention', 'Time and tune alone, concurrently, concurrently with isolation, and alone again.\n\n\x08\nassay contention run --quick\nassay contention run --benchmark gemm softmax --gpus 0,1 --budget 10m\nassay contention run --device cpu:0 --workers-per-device 2 --aggressor cpu', (
        FlagRow('benchmarks', opts='--benchmark', style='list', metavar='NAME...', group='What to measure', help='Workloads to time and tune.', item='[^-\\s]\\S*', aliases='--kernel'),
        PARAMS,
        FlagRow('workers', opts='--workers-per-device', metavar='N', group='What to measure', help='Processes per device.  [default: 1; 2 on CPU cores without --aggressor]'),
        FlagRow('aggressors', opts='--aggressor', style='list', metavar='NAME...', group='What to measure', help='Concurrent loads: cpu, memory, pcie, sm, hbm, or any workload.', item='[^-\\s]\\S*'),
        FlagRow('tuner', opts='--tuner', metavar='[pick|triton|helion|none]', group='What to measure', help='Auto-tuner to run.  [default: pick]', choices=('pick', 'triton', 'helion', 'none')),
        FlagRow('tuner_command', opts='--tuner-command', metavar="'CMD {output}'", group='What to measure', help='Tuner of your own; it writes JSON to {output}.'),
        GPUS_3, DEVICES, CPU_GROUPS_2,
        FlagRow('budget_s', opts='--budget', metavar='TIME', group='How to measure', help='Total time; blocks repeat to fill it.  [default: 5m]'),
        FlagRow('duration_s', opts='--duration', metavar='TIME', group='How to measure', help='Time per trial, with tuning.  [default: from --budget]'),
        FlagRow('repeat', opts='--repeat', metavar='N', group='How to measure', help='Number of blocks.  [default: as many as fit]'),
        COOLDOWN_S, MINIMUM_EFFECT_2,
        FlagRow('quick', opts='--quick', style='switch', group='How to measure', help='Quick first look: a budget of 60s.'),
        SEED, ON_INTERFERENCE, RETAKES, TIMEOUT_S_2, OPTIONS_FILE, OUTPUT_DIR, NAME_HOST, DRY_RUN, AS_JSON, MONITOR,
        MONITOR_INTERVAL_S, HISTORY, ON, TIME, NODES, NPROC, SHIP, REMOTE_PYTHON, PARTITION, ACCOUNT, GRES,
        GPUS_PER_NODE, SBATCH_ARGS, GPU_TYPE, IMAGE, MAX_COST,
    )),
    'contention variance': VerbRow('assay.cli.compare', 'Compare times, spread and picked configurations of two groups of results.\n\nResults are run folders of `assay contention run` or `assay run`, their records.jsonl, or JSON files of older tools.\nFor a single run of `assay contention run`, its phases are compared with its baseline.\n\n\x08\nassay contention variance runs/latest\nassay contention variance runs/before runs/after\nassay contention variance baseline/*.json --against concurrent/*.json\nassay contention variance base0.json,base1.json conc0.json,conc1.json', (
        FlagRow('baseline', style='arguments', metavar='BASELINE...', group='Options'),
        FlagRow('against', opts='--against', style='rest', metavar='CONCURRENT...', group='Options', help='Results to compare with the baseline.', item='[^-].*'),
        FlagRow('phase', opts='--phase', metavar='[naive|isolated|again]', group='Options', help='Phase of `assay contention run` to compare with its baseline.  [default: naive]', choices=('naive', 'isolated', 'again')),
        FlagRow('minimum_effect', opts='--min-effect', metavar='PERCENT', group='Options', help='Ignore effects smaller than this.  [default: 1%]'),
        FlagRow('output', opts='--output -o', metavar='DIR', group='Options', help='Write report.md and report.html.'),
        AS_JSON,
    )),
    'doctor': VerbRow('assay.cli.doctor', 'Check this machine: hardware, isolation, sources of noise, and how to fix them.\n\nWith --gpus each of these GPUs is used: if one is missing, lost or refuses, the exit code is 3; otherwise a\nconfiguration for inference on them is printed.', (
        FlagRow('gpus', opts='--gpus', style='list', metavar='0,1', group='Options', help='Run a kernel on each of these GPUs.', item='\\d+'),
        AS_JSON,
    )),
    'energy check': VerbRow('assay.cli.doctor', 'Check that the GPUs are present, compute, and are idle, before measuring.\n\nEach GPU is checked through NVML and with a PyTorch kernel. Usable GPUs are written into a configuration that limits\nthe model to 90 % of their memory. Exit code 3: no usable GPU.\n\n\x08\nassay energy check\nassay energy check --gpus 0,1 -o energy.yaml', (
        GPUS_2,
        FlagRow('output', opts='--output -o', metavar='FILE', group='Options', help='Write the configuration to a file.'),
        FlagRow('yes', opts='--yes', style='switch', group='Options', help='Overwrite an existing file.'),
        AS_JSON,
    )),
    'energy compare': VerbRow('assay.cli.compare', 'Compare tokens/s and J/token across cells of `assay energy run`, with the Pareto front.\n\nRUN is a run folder, a folder of such folders, an energy.json, or a .csv file with appended rows; by default\nruns/latest. A cell is dominated only if another is faster and uses less energy, both beyond their intervals.\n\n\x08\nassay energy compare runs/latest\nassay energy compare llama-1b.csv llama-8b.csv --by model -o pareto.png\nassay energy compare runs/one-gpu runs/four-gpus --by placement -o out.html', (
        RUNS,
        FlagRow('by', opts='--by', metavar='FACTOR', group='Options', help='Compare the values of model, batch, placement, mode, gpu or run.  [default: what differs]', choices=('model', 'batch', 'placement', 'mode', 'gpu', 'run')),
        FlagRow('of', opts='--of', metavar='PHASE', group='Options', help='Tokens of: decode, prefill or requests.  [default: decode; requests if a server is included]', choices=('decode', 'prefill', 'requests')),
        FlagRow('outputs', opts='--output -o', style='many', metavar='PATH', group='Options', help='Write a .html, .md, .png or .json file, or a folder with all of them; repeatable.'),
        AS_JSON,
    )),
    'energy run': VerbRow('assay.cli.energy_run', 'Measure joules per token of a local model or of an OpenAI-compatible server.\n\nCONFIG.yaml describes the backend, scenario, metrics and reporter; `assay energy check` writes one that fits this\nmachine. Without a file, --model is enough.\n\n\x08\nassay energy run --quick --model random:llama-tiny\nassay energy run examples/pytorch_single.yaml\nassay energy run examples/pytorch_multigpu.yaml --set scenario.repeats=5\nassay energy run examples/openai_server.yaml --gpus 0 --dry-run', (
        FlagRow('config', style='argument', metavar='[CONFIG.yaml]', group='Options'),
        FlagRow('model', opts='--model', metavar='NAME', group='What to measure', help='Model: random:llama-1b, a folder, or a hub id.'),
        FlagRow('sets', opts='--set', style='many', metavar='KEY=VALUE', group='What to measure', help='Override a value: backend.device_ids=[0,1].'),
        FlagRow('gpus', opts='--gpus', style='list', metavar='0,1', group='What to measure', help='GPUs to run on, or of the server to meter.', item='\\d+|GPU-\\S+'),
        FlagRow('device', opts='--device', metavar='[auto|cuda|cpu]', group='What to measure', help='Device of the model.  [default: from the file, or auto]', choices=('auto', 'cuda', 'cpu')),
        FlagRow('allow_missing', opts='--allow-missing', style='switch', group='What to measure', help='Continue without missing GPUs if at least one is present.'),
        FlagRow('repeat', opts='--repeat', metavar='N', group='How to measure', help='Fresh processes.  [default: from the file, or 3]'),
        FlagRow('budget_s', opts='--budget', metavar='TIME', group='How to measure', help='Total time; starts nothing that would not fit.'),
        FlagRow('isolation', opts='--isolation', metavar='LEVEL', group='How to measure', help='none, gpu, cpu, numa or full.  [default: gpu; none on a CPU]', choices=('none', 'gpu', 'cpu', 'numa', 'full')),
        FlagRow('seed', opts='--seed', metavar='N', group='How to measure', help='Random seed.  [default: from the file, or 0]'),
        FlagRow('quick', opts='--quick', style='switch', group='How to measure', help='Quick first look: one process, windows of 2s, smallest sizes.'),
        ON_INTERFERENCE, RETAKES, TIMEOUT_S, OPTIONS_FILE,
        FlagRow('reports', opts='--reports/--no-reports', style='switch', group='Output', help='Write the reports named in the file.'),
        FlagRow('output_dir', opts='--output-dir', metavar='PATH', group='Output', help='Folder for run folders.  [default: from the file, or runs]'),
        NAME_HOST, DRY_RUN, AS_JSON, HISTORY, ON, TIME, NODES, NPROC, SHIP, REMOTE_PYTHON, PARTITION, ACCOUNT, GRES,
        GPUS_PER_NODE, SBATCH_ARGS, GPU_TYPE, IMAGE, MAX_COST,
    )),
    'gate': VerbRow('assay.cli.gate', "Fail if HEAD is slower than BASE by more than a limit.\n\nBoth are checked out in temporary git worktrees and measured alternately in processes that are restarted several\ntimes. Exit code 0: pass, or inconclusive. 1: fail. 3: a revision does not install.\n\n\x08\nassay gate --base main -- bench/speed.py:work\nassay gate --base main -- package.module:function\nassay gate --base v1.2 --head HEAD -- python bench/speed.py\nassay gate --base main --setup ./install.sh -- python bench.py\nassay gate --base main --metric 'tok=(.+)/s' --higher-is-better tok -- ./run", (
        FlagRow('workloads', style='arguments', metavar='[WORKLOAD] [-- COMMAND|WORKLOAD]', group='Options'),
        FlagRow('base', opts='--base', metavar='REF', group='What to measure', help='Baseline revision: a branch, tag or commit.'),
        FlagRow('head', opts='--head', metavar='REF', group='What to measure', help='Revision to test.  [default: HEAD]'),
        FlagRow('setup', opts='--setup', metavar='COMMAND', group='What to measure', help='Run in each checkout first, such as an install.'),
        FlagRow('python', opts='--python', metavar='PATH', group='What to measure', help='Interpreter made by --setup.  [default: .venv/bin/python]'),
        PARAMS, METRICS, GPUS, DEVICES, CPU_GROUPS, MINIMUM_EFFECT,
        FlagRow('lower_is_better', opts='--lower-is-better', style='many', metavar='NAME', group='How to decide', help='Gate on this metric; lower is better.'),
        FlagRow('higher_is_better', opts='--higher-is-better', style='many', metavar='NAME', group='How to decide', help='Gate on this metric; higher is better.'),
        FlagRow('gate_time', opts='--gate-time/--no-gate-time', style='switch', group='How to decide', help='Gate on time, or on metrics only.'),
        FlagRow('decide_on', opts='--decide-on', metavar='[both|kernels|call]', group='How to decide', help='GPU time to gate on.  [default: both]', choices=('both', 'kernels', 'call')),
        UNSURE,
        FlagRow('restarts', opts='--restarts', metavar='N', group='How to measure', help='Restarts before the first look.  [default: 5]'),
        FlagRow('duration_s', opts='--duration', metavar='TIME', group='How to measure', help='Time per restart, without startup.  [default: 3s]'),
        FlagRow('budget_s', opts='--budget', metavar='TIME', group='How to measure', help='Total time, without --setup.  [default: 2m]'),
        FlagRow('quick', opts='--quick', style='switch', group='How to measure', help='Quick first look: 3 restarts of 1s, 30s in total.'),
        CACHE, ISOLATION, SEED, ON_INTERFERENCE, RETAKES, TIMEOUT_S_2, OPTIONS_FILE, OUTPUT_DIR, NAME_HOST, DRY_RUN,
        AS_JSON, MONITOR, MONITOR_INTERVAL_S, HISTORY,
    )),
    'github comment': VerbRow('assay.cli.github', 'Post RESULTS on a pull request, also if some or all of them are missing.\n\nThere is one comment; later results replace it.\n\n\x08\nassay github comment results.json --pull-request 12 --dry-run\nassay github comment results --pull-request 12 --base main --gpu-types L4,A100', (
        RESULTS,
        FlagRow('pull_request', opts='--pull-request', metavar='N', group='Options', help='Number of the pull request.', required=True),
        FlagRow('gpu_types', opts='--gpu-types', metavar='L4,A100', group='Options', help='Requested GPU models; those without results are listed too.'),
        FlagRow('dry_run', opts='--dry-run', style='switch', group='Options', help='Show the comment only; --config is a local file.'),
        CONFIG, THRESHOLDS, TRUSTED, BASE, REPOSITORY, COMMIT,
    )),
    'github measure': VerbRow('assay.cli.github', 'Measure thresholds of SUBJECT, a checked-out commit, on a rented GPU; none of its code runs here.\n\nRuns `assay threshold run --on HOST`, and writes results.json, exit-code, rentals.jsonl, the report and the run to\n--output. A commit of Assay itself is measured with its own package.', (
        FlagRow('subject', style='argument', metavar='SUBJECT', group='Options', required=True),
        FlagRow('gpu_type', opts='--gpu-type', metavar='L4', group='Options', help='GPU model, a single one.', required=True),
        FlagRow('output', opts='--output -o', metavar='DIR', group='Options', help='Empty folder for the results.', required=True),
        FlagRow('thresholds', opts='--thresholds', metavar='FILE', group='Options', help='Thresholds file in the commit.  [default: both NSA branches]'),
        FlagRow('trusted', opts='--trusted', metavar='DIR', group='Options', help='Read --thresholds from this folder instead.'),
        FlagRow('on', opts='--on', metavar='HOST', group='Options', help='Where to rent the GPU.  [default: auto]'),
        FlagRow('max_cost_usd', opts='--max-cost', metavar='USD', group='Options', help='Rent nothing that may cost more than this.'),
        FlagRow('limit', opts='--time', metavar='30m', group='Options', help='Time limit of the job.  [default: 30m]'),
    )),
    'github pull-request': VerbRow('assay.cli.github', 'Open a pull request with new thresholds from RESULTS: JSON files of `assay threshold run --output`, or folders.\n\nOne pull request per device; an open one is updated. None is opened if nothing changes, if the results are\ninconclusive, or if the fast path failed its parity check (exit code 1).\n\n\x08\nassay github pull-request results.json --config configs/base.yaml --dry-run\nassay github pull-request results --base main', (
        RESULTS,
        FlagRow('dry_run', opts='--dry-run', style='switch', group='Options', help='Show the pull request only; --config is a local file.'),
        CONFIG, THRESHOLDS, TRUSTED, BASE, REPOSITORY, COMMIT,
    )),
    'github request': VerbRow('assay.cli.github', "Decide whether this workflow event requests a measurement, and set the outputs for the next jobs.\n\nReads the environment that GitHub sets; ASSAY_GPU_TYPE, ASSAY_CREATE_PR and ASSAY_DEFAULT_GPU are the workflow's\ninputs. Writes go, gpu_types, repository, commit, branch, pull_request and create_pr to GITHUB_OUTPUT.\n\nExit code 2: invalid request. Exit code 3: the author lacks permission.", (
        FlagRow('as_json', opts='--json', style='switch', group='Options', help='Print the request as JSON.'),
    )),
    'history export': VerbRow('assay.cli.history', 'Export every point with its run and series to FILE; - is stdout.\n\n\x08\nassay history export history.csv\nassay history export --workload softmax --since 90d softmax.json', (
        FILE,
        FlagRow('as_csv', opts='--csv', style='switch', group='Options', help='Write a CSV table.  [default: unless FILE ends in .json]'),
        FlagRow('as_json', opts='--json', style='switch', group='Options', help='Write runs, series and points as JSON.'),
        WORKLOAD, GPU, SINCE_S, ORIGIN,
    )),
    'history import': VerbRow('assay.cli.history', 'Import the finished runs in folders and their subfolders into the history.\n\nA run that is already imported is skipped unless it was resumed since. Unreadable folders are reported and the rest\nis imported; if a folder is damaged, the exit code is 2 and its stored points are kept.\n\n\x08\nassay history import runs\nassay history import --rebuild runs /data/older-runs', (
        FlagRow('folders', style='arguments', metavar='DIR...', group='Options', required=True),
        FlagRow('rebuild', opts='--rebuild', style='switch', group='Options', help='Delete the history and import these runs.'),
        FlagRow('yes', opts='--yes', style='switch', group='Options', help='With --rebuild: also drop runs whose folders are missing.'),
        AS_JSON,
    )),
    'history list': VerbRow('assay.cli.history', 'List runs, newest first, or with --series what they measured repeatedly.\n\n\x08\nassay history list --since 30d\nassay history list --workload softmax --series', (
        FlagRow('as_series', opts='--series', style='switch', group='Options', help='List series with their keys instead of runs.'),
        FlagRow('limit', opts='--limit', metavar='N', group='Options', help='Maximum number of runs.  [default: 20]'),
        WORKLOAD, GPU, SINCE_S,
        FlagRow('origin', opts='--origin', metavar='[real|fake|simulated|all]', group='Options', help='Origin of the numbers.  [default: all]', choices=('real', 'fake', 'simulated', 'all')),
        AS_JSON,
    )),
    'history plot': VerbRow('assay.cli.history', 'Plot a series over time with its confidence intervals, and list its points.\n\nKEY is the key of a series, a prefix of it, or words that identify it.\n\n\x08\nassay history plot softmax@numpy call_us rows=4096\nassay history plot 3f2a91c04b7d -o softmax.png', (
        FlagRow('name', style='arguments', metavar='KEY', group='Options', required=True),
        FlagRow('output', opts='--output -o', metavar='FILE', group='Options', help='Write .html or .png.  [default: history-KEY.html]'),
        ORIGIN,
    )),
    'history regressions': VerbRow('assay.cli.history', 'Report the run and commit that made something slower or faster, in all series.\n\nEach change point is reported with its first run and commit, its size with an interval, and what else changed:\nwith a new host or driver it is confounded, and not a regression.\n\n\x08\nassay history regressions\nassay history regressions --workload softmax -o changes.html\nassay history regressions --new-since 7d --fail-on-regression', (
        FlagRow('quantity', opts='--quantity', metavar='NAME', group='Options', help='Only this quantity, such as call_us.'),
        FlagRow('new_since_s', opts='--new-since', metavar='14d', group='Options', help='Only changes since a date, or within a period.'),
        WORKLOAD, GPU, SINCE_S, ORIGIN,
        FlagRow('fdr', opts='--fdr', metavar='PERCENT', group='How to decide', help='False-discovery rate.  [default: 5%]'),
        FlagRow('minimum_effect', opts='--min-effect', metavar='PERCENT', group='How to decide', help='Ignore effects smaller than this.  [default: 1%]'),
        FAIL_ON_REGRESSION,
        FlagRow('output', opts='--output -o', metavar='FILE', group='Output', help='Write the report as .html or .md.'),
        AS_JSON,
    )),
    'history show': VerbRow('assay.cli.history', 'Show the points of a series or the results of a run.\n\nA KEY is the key of a series, a prefix of it, or words that identify it: a workload, a quantity, a\nparameter. A RUN is its id, its folder, or "latest".\n\n\x08\nassay history show latest\nassay history show softmax@numpy call_us rows=4096', (
        FlagRow('name', style='arguments', metavar='KEY|RUN', group='Options', required=True),
        ORIGIN, AS_JSON,
    )),
    'list': VerbRow('assay.cli.runs', 'List workloads, devices and runs, or only one of these kinds.', (
        FlagRow('kinds', style='arguments', metavar='[workloads|devices|runs]...', group='Options', choices=('workloads', 'devices', 'runs')),
        OUTPUT_DIR, AS_JSON,
    )),
    'monitor': VerbRow('assay.cli.monitor', 'Record GPU and host sensors, for a while or while a command runs.\n\nOUT ends in .jsonl, .json or .csv; an existing recording is replaced.\n\n\x08\nassay monitor gpu.jsonl --duration 5m\nassay monitor gpu.csv --gpus 0,1 --interval 50ms -- python train.py', (
        FlagRow('out', style='argument', metavar='OUT [-- COMMAND...]', group='Options', required=True),
        FlagRow('duration_s', opts='--duration', metavar='TIME', group='Options', help='How long to record.  [default: until stopped, or COMMAND ends]'),
        FlagRow('interval_s', opts='--interval', metavar='TIME', group='Options', help='Sampling interval.  [default: 0.1s]'),
        GPUS_2,
        FlagRow('gpu_only', opts='--gpu-only', style='switch', group='Options', help='Record GPUs only.'),
        FlagRow('host_only', opts='--host-only', style='switch', group='Options', help='Record the host only.'),
        FlagRow('perfetto', opts='--perfetto', metavar='FILE', group='Options', help='Also write a trace for ui.perfetto.dev.'),
        FlagRow('as_json', opts='--json', style='switch', group='Options', help='Print the statistics as JSON.'),
    )),
    'power budget': VerbRow('assay.cli.power_analysis', 'Find the power limits with the most throughput under a power budget; sets nothing.\n\nRUN is a run folder of `assay power sweep --limits`, a folder of such folders, or a .jsonl or .csv file of their\nrows; by default runs/latest. GPUs that were only characterized get the median curve of their model.\n\n\x08\nassay power budget --watts 2400 runs/latest\nassay power budget --watts 10200 --overhead 1800 --min-share 70% rack7', (
        RUNS,
        FlagRow('watts', opts='--watts', metavar='W', group='Options', help='Power budget of the node or rack.', required=True),
        FlagRow('overhead_w', opts='--overhead', metavar='W', group='Options', help='Watts not available to the GPUs.'),
        FlagRow('min_share', opts='--min-share', metavar='PERCENT', group='Options', help='Keep every GPU at this share of its full rate.'),
        FlagRow('workload', opts='--workload', metavar='NAME', group='Options', help='Workload, if several were swept.'),
        OUTPUT, AS_JSON,
    )),
    'power characterize': VerbRow('assay.cli.power', "Sample power, clocks and temperature while kernels run: alone, concurrently, and under contention.\n\nWithout a file the cases are idle, sgemm on 1 to 4 GPUs, and sgemm concurrently with training, copies and both.\n\n\x08\nassay power characterize\nassay power characterize --quick --device cpu\nassay power characterize my_cases.yaml --case 'sgemm*' --gpus 0,1 --repeat 5", (
        FlagRow('cases', style='argument', metavar='[CASES.yaml]', group='Options'),
        FlagRow('names', opts='--case', style='many', metavar='NAME', group='What to measure', help='Only these cases; * is a wildcard.'),
        GPUS_3, DEVICES, CPU_GROUPS_2,
        FlagRow('repeat', opts='--repeat', metavar='N', group='How to measure', help='Repetitions.  [default: from the file, or 3]'),
        FlagRow('duration_s', opts='--duration', metavar='TIME', group='How to measure', help='Time per trial.  [default: from the file, or 20s]'),
        FlagRow('settle_s', opts='--settle', metavar='TIME', group='How to measure', help='Settle at most this long.  [default: from the file, or 2m]'),
        FlagRow('no_settle', opts='--no-settle', style='switch', group='How to measure', help='Do not wait for steady clocks and temperature.'),
        FlagRow('restarts', opts='--restarts', metavar='N', group='How to measure', help='Fresh processes.  [default: from the file, or 1]'),
        FlagRow('rotate', opts='--rotate/--no-rotate', style='switch', group='How to measure', help='Time every GPU in turn.  [default: rotate]'),
        BUDGET_S, MINIMUM_EFFECT_2,
        FlagRow('quick', opts='--quick', style='switch', group='How to measure', help='Quick first look: once, 2s per trial, 10s to settle, no rotation.'),
        ISOLATION, SEED, ON_INTERFERENCE, RETAKES, TIMEOUT_S_2, OPTIONS_FILE, OUTPUT_DIR, NAME_HOST, DRY_RUN, AS_JSON,
        MONITOR, MONITOR_INTERVAL_S, HISTORY, ON, TIME,
        FlagRow('nodes', opts='--nodes', metavar='N', group='Remote machines', help='Number of nodes.  [default: all that are up]'),
        SHIP, REMOTE_PYTHON,
        FlagRow('nodelist', opts='--nodelist', metavar='n1,n[4-7]', group='Slurm', help='Names of the nodes.  [default: all]'),
        FlagRow('max_concurrent', opts='--max-concurrent', metavar='N', group='Slurm', help='Measure at most this many nodes at a time.'),
        FlagRow('attempts', opts='--attempts', metavar='N', group='Slurm', help='Attempts per node.  [default: 2]'),
        PARTITION, ACCOUNT, GRES, GPUS_PER_NODE, SBATCH_ARGS, GPU_TYPE, IMAGE, MAX_COST,
    )),
    'power sweep': VerbRow('assay.cli.power', 'Sweep power limits, clocks or load, and find the most energy-efficient setting.\n\n\x08\nassay power sweep --limits 200:700:50\nassay power sweep --limits 200:700:50 --apply --max-slowdown 5%\nassay power sweep gemm --sizes 1024,2048,4096,8192\nassay power sweep --duty 10%:100%:10%', (
        FlagRow('workload', style='argument', metavar='[WORKLOAD]', group='Options', help='[default: sgemm]'),
        FlagRow('limits', opts='--limits', style='list', metavar='200:700:50', group='What to measure', help='Power limits in W; needs --apply.', item='[0-9.][0-9.:%a-zA-Z]*'),
        FlagRow('sm_clocks', opts='--sm-clocks', style='list', metavar='900:1980:90', group='What to measure', help='SM clocks in MHz; needs --apply.', item='[0-9.][0-9.:%a-zA-Z]*'),
        FlagRow('sizes', opts='--sizes', style='list', metavar='1024,2048', group='What to measure', help='Problem sizes.', item='[0-9.][0-9.:%a-zA-Z]*'),
        FlagRow('dtypes', opts='--dtypes', style='list', metavar='float32,...', group='What to measure', help='Data types.', item='(bfloat|float|fp|bf|tf|int|uint)[0-9]\\w*'),
        FlagRow('batches', opts='--batches', style='list', metavar='1,8,32', group='What to measure', help='Batch sizes.', item='[0-9.][0-9.:%a-zA-Z]*'),
        FlagRow('duty', opts='--duty', style='list', metavar='10%:100%:10%', group='What to measure', help='Duty cycles of the load.', item='[0-9.][0-9.:%a-zA-Z]*'),
        FlagRow('size_params', opts='--size-param', style='list', metavar='NAME', group='What to measure', help='Parameter set by --sizes.  [default: m, n and k; n; or size]', item='[a-z_]\\w*'),
        FlagRow('apply', opts='--apply', style='switch', group='What to measure', help='Set limits or clocks, and restore them afterwards.'),
        PARAMS,
        FlagRow('concurrent', opts='--concurrent', style='switch', group='What to measure', help='Run all GPUs concurrently, not one by one.'),
        GPUS_4, DEVICES, CPU_GROUPS_2,
        FlagRow('duration_s', opts='--duration', metavar='TIME', group='How to measure', help='Time per trial, without startup.  [default: 10s]'),
        FlagRow('settle_s', opts='--settle', metavar='TIME', group='How to measure', help='Settle at most this long.  [default: 30s]'),
        COOLDOWN_S,
        FlagRow('repeat', opts='--repeat', metavar='N', group='How to measure', help='Repetitions of each step.  [default: 3]'),
        FlagRow('restarts', opts='--restarts', metavar='N', group='How to measure', help='Fresh processes per trial.'),
        BUDGET_S,
        FlagRow('max_slowdown', opts='--max-slowdown', metavar='PERCENT', group='How to measure', help='Recommend caps within this.  [default: 5%]'),
        MINIMUM_EFFECT_2,
        FlagRow('quick', opts='--quick', style='switch', group='How to measure', help='Quick first look: 3s per trial, 5s to settle.'),
        ISOLATION, SEED, ON_INTERFERENCE, RETAKES, TIMEOUT_S_2, OPTIONS_FILE, OUTPUT_DIR, NAME_HOST,
        FlagRow('dry_run', opts='--dry-run', style='switch', group='Output', help='Show what would be measured or changed.'),
        AS_JSON, MONITOR, MONITOR_INTERVAL_S, HISTORY, ON, TIME, NODES, NPROC, SHIP, REMOTE_PYTHON, PARTITION, ACCOUNT,
        GRES, GPUS_PER_NODE, SBATCH_ARGS, GPU_TYPE, IMAGE, MAX_COST,
    )),
    'power variability': VerbRow('assay.cli.power_analysis', 'Find GPUs that are slow, hot or power-hungry, and which to request instead.\n\nRUN is a run folder of `assay power characterize`, a folder of such folders (a fleet), or a .jsonl or .csv file of\ntheir rows; by default runs/latest. Unreadable files are reported and skipped.\n\n\x08\nassay power variability runs/latest\nassay power variability runs\nassay power variability fleet/rack1 fleet/rack2 -o fleet/report', (
        RUNS,
        FlagRow('minimum_effect', opts='--min-effect', metavar='PERCENT', group='Options', help='Ignore effects smaller than this.  [default: 2%]'),
        FlagRow('racks', opts='--racks', metavar='FILE', group='Options', help='CSV of host,rack, for runs without a rack.'),
        OUTPUT, AS_JSON,
    )),
    'reap': VerbRow('assay.cli.rentals', 'Clean up after crashed runs: processes, changed limits, rented machines.\n\nSafe at any time: running runs are left alone. Machines rented by Assay that are past their deadline are terminated,\nwhoever rented them, at every provider whose credentials are set.', (
        AS_JSON,
    )),
    'rentals': VerbRow('assay.cli.rentals', 'List rented machines, since when and until when, and their quoted and billed cost.\n\nAsks every provider whose credentials are set; ended rentals of this month come from the journal. `assay reap` ends\nabandoned machines.', (
        AS_JSON,
    )),
    'report': VerbRow('assay.cli.runs', 'Redraw the report of a run from its records, or of a recording of `assay monitor`.\n\nRUN is a run folder, a fleet or a recording; by default runs/latest.', (
        RUN, PERFETTO, AS_JSON,
    )),
    'resume': VerbRow('assay.cli.runs', 'Resume a run that was stopped or failed.\n\nComplete blocks are kept. A block that is incomplete or has a failed trial is measured again; the records keep the\nprevious attempt. Resuming on a different machine is refused. RUN may be a fleet: then only its missing nodes are\nmeasured.', (
        RUN, AS_JSON, HISTORY, ON, TIME, NODES, NPROC, SHIP, REMOTE_PYTHON, PARTITION, ACCOUNT, GRES, GPUS_PER_NODE,
        SBATCH_ARGS, GPU_TYPE, IMAGE, MAX_COST,
    )),
    'run': VerbRow('assay.cli.run', "Time workloads, your own functions or any command.\n\n\x08\nassay run softmax gemm\nassay run softmax --device cpu --mode concurrent --isolation full\nassay run path/to/file.py:function\nassay run --metric 'loss=loss ([0-9.]+)' -- python train.py", (
        FlagRow('workloads', style='arguments', metavar='[WORKLOAD]... [-- COMMAND...]', group='Options'),
        FlagRow('benchmarks', opts='--benchmark', style='many', metavar='NAME', group='What to measure', help='Another workload to time.', aliases='--kernel'),
        PARAMS, METRICS,
        FlagRow('ranks', opts='--ranks', metavar='N', group='What to measure', help='Processes per worker group.  [default: 1]'),
        FlagRow('references', opts='--references/--no-references', style='switch', group='What to measure', help="Also measure the GPU's peak rates."),
        GPUS_3, DEVICES, CPU_GROUPS_2,
        FlagRow('mode', opts='--mode', metavar='MODE', group='How to measure', help='sequential or concurrent.  [default: sequential]', choices=('sequential', 'concurrent')),
        FlagRow('duration_s', opts='--duration', metavar='TIME', group='How to measure', help='Time per trial.  [default: 10s]'),
        FlagRow('budget_s', opts='--budget', metavar='TIME', group='How to measure', help='Total time; trials are shortened to fit.'),
        COOLDOWN_S,
        FlagRow('repeat', opts='--repeat', metavar='N', group='How to measure', help='Repetitions of everything.'),
        FlagRow('restarts', opts='--restarts', metavar='N', group='How to measure', help='Fresh processes per trial.  [default: 5]'),
        FlagRow('warmup_runs', opts='--warmup-runs', metavar='N', group='How to measure', help='Make exactly this many warm-up calls.'),
        FlagRow('benchmark_runs', opts='--benchmark-runs', metavar='N', group='How to measure', help='Time exactly this many calls.'),
        FlagRow('precision', opts='--precision', metavar='PERCENT', group='How to measure', help='Stop a trial at this precision.  [default: 1%]'),
        FlagRow('quick', opts='--quick', style='switch', group='How to measure', help='Quick first look: 2s per trial, 2 restarts.'),
        CACHE, ISOLATION, SEED, ON_INTERFERENCE, RETAKES, TIMEOUT_S_2, OPTIONS_FILE, OUTPUT_DIR, NAME_HOST, DRY_RUN,
        AS_JSON, MONITOR, MONITOR_INTERVAL_S, HISTORY, ON, TIME, NODES, NPROC, SHIP, REMOTE_PYTHON, PARTITION, ACCOUNT,
        GRES, GPUS_PER_NODE, SBATCH_ARGS, GPU_TYPE, IMAGE, MAX_COST,
    )),
    'scaling analyse': VerbRow('assay.cli.scaling_analyse', 'Report on results of `assay scaling run` or of the older tool, and apply a gate.\n\nRESULTS is a run folder, a folder of runs, a latest.json, or a folder of such JSON files; by default runs/latest.\n\n\x08\nassay scaling analyse runs/latest\nassay scaling analyse benchmark_results --min-efficiency 0.7 --unsure fail', (
        FlagRow('results', style='argument', metavar='RESULTS', group='Options'),
        FlagRow('results_dir', opts='--results-dir', metavar='PATH', group='Options', hidden=True),
        MIN_EFFICIENCY, UNSURE,
        FlagRow('output', opts='--output -o', metavar='DIR', group='Output', help='Folder of the files.  [default: RESULTS]'),
        AS_JSON,
    )),
    'scaling predict': VerbRow('assay.cli.scaling_predict', "Predict time, efficiency and memory on more GPUs than this machine has.\n\nMeasures one GPU's share of every ring on one device, and adds the time of the messages, overlapped or not.\n\n\x08\nassay scaling predict --gpus-count 8,64,512 --link nvlink4\nassay scaling predict --seq-lengths 65536 --gpus-count 16 --link 5us:100GB/s", (
        FlagRow('counts', opts='--gpus-count', style='list', metavar='8,64,512', group='What to measure', help='GPUs per ring.  [default: 8 64 512]', item='[+-]?\\d+'),
        FlagRow('link', opts='--link', metavar='NAME', group='What to measure', help='nvlink4, pcie5, eth400, or LATENCY:BANDWIDTH such as 5us:100GB/s.  [default: nvlink4]'),
        WEAK,
        FlagRow('passes', opts='--passes', metavar='[forward|total]', group='What to measure', help='Forward only, or with backward.  [default: total]', choices=('forward', 'total')),
        BATCH_SIZE, SEQ_LENGTHS, EMBED_DIM, NUM_HEADS, NUM_KV_HEADS, SEGMENT_LENGTHS, DILATION_RATES, DTYPE, CAUSAL,
        OFFSET, BACKEND, NO_FLASH, GPUS, DEVICES, CPU_GROUPS_2, MIN_EFFICIENCY, UNSURE, WARMUP_RUNS, BENCHMARK_RUNS,
        ISOLATION, SEED, ON_INTERFERENCE, RETAKES, TIMEOUT_S, OPTIONS_FILE, OUTPUT_DIR, NAME_HOST, DRY_RUN, AS_JSON,
        MONITOR, MONITOR_INTERVAL_S, HISTORY,
    )),
    'scaling run': VerbRow('assay.cli.scaling_run', 'Measure how ring dilated attention, or any workload, scales over ranks.\n\nLaunches the ranks, or joins those of torchrun. Smaller defaults on a CPU.\n\n\x08\nassay scaling run --nproc 4 --seq-lengths 16384 32768 --ring-sizes 1 2 4\ntorchrun --nproc_per_node=2 -m assay scaling run --causal', (
        FlagRow('ring_sizes', opts='--ring-sizes', style='list', metavar='R...', group='What to measure', help='Ranks per ring.  [default: 1 2 4 8]', item='[+-]?\\d+'),
        FlagRow('nproc', opts='--nproc', metavar='N', group='What to measure', help='Ranks.  [default: one per device]'),
        FlagRow('every', opts='--all', style='switch', group='What to measure', help='Use 1, 2, 4 and 8 ranks, as devices allow.'),
        FlagRow('quick', opts='--quick', style='optional', metavar='[N]', group='What to measure', help='Small problem, once; N sets the ranks.', item='0'),
        FlagRow('large', opts='--large', style='optional', metavar='[N]', group='What to measure', help='131072 and 262144 tokens; N sets the ranks.', item='0'),
        WEAK,
        FlagRow('workload', opts='--workload', metavar='NAME', group='What to measure', help='Scale another workload instead.'),
        FlagRow('params', opts='--param', style='many', metavar='NAME=VALUE', group='What to measure', help='Set a parameter of --workload.'),
        FlagRow('ranks_param', opts='--ranks-param', metavar='NAME', group='What to measure', help='Parameter that --strong divides by ranks.'),
        FlagRow('references', opts='--references/--no-references', style='switch', group='What to measure', help='Also measure a large matmul (on a GPU).'),
        FlagRow('energy', opts='--energy/--no-energy', style='switch', group='What to measure', help='Measure J/token.  [default: on a GPU]'),
        FlagRow('profile', opts='--profile', style='switch', group='What to measure', help='Trace a call of the first configuration.'),
        BATCH_SIZE, SEQ_LENGTHS, EMBED_DIM, NUM_HEADS, NUM_KV_HEADS, SEGMENT_LENGTHS, DILATION_RATES, DTYPE, CAUSAL,
        OFFSET, BACKEND, NO_FLASH, GPUS_3, DEVICES,
        FlagRow('cpu_groups', opts='--cpu-groups', metavar='N', group='What to measure', help='Split the cores into this many groups (one device each).  [default: one per rank]'),
        FlagRow('link', opts='--link', metavar='NAME', group='How to measure', help='Predict first: nvlink4 or 5us:100GB/s.'),
        FlagRow('unsure', opts='--unsure', metavar='[pass|fail]', group='How to measure', help='Gate result if inconclusive.  [default: pass]', choices=('pass', 'fail')),
        FlagRow('min_efficiency', opts='--min-efficiency', metavar='PERCENT', group='How to measure', help='Exit with code 1 below this efficiency.'),
        WARMUP_RUNS, BENCHMARK_RUNS,
        FlagRow('repeat', opts='--repeat', metavar='N', group='How to measure', help='Fresh starts.  [default: 3; --quick 1; gate 5]'),
        ISOLATION, SEED, ON_INTERFERENCE, RETAKES, TIMEOUT_S, OPTIONS_FILE,
        FlagRow('no_save', opts='--no-save', style='switch', group='Output', hidden=True),
        FlagRow('output_dir', opts='--output-dir', metavar='PATH', group='Output', help='Folder for run folders.  [default: runs]', envvar='OUTPUT_DIR'),
        NAME_HOST, DRY_RUN, AS_JSON, MONITOR, MONITOR_INTERVAL_S, HISTORY, ON, TIME, NODES, SHIP, REMOTE_PYTHON,
        PARTITION, ACCOUNT, GRES, GPUS_PER_NODE, SBATCH_ARGS, GPU_TYPE, IMAGE, MAX_COST,
    )),
    'scaling test': VerbRow('assay.cli.scaling_test', 'Check outputs, gradients and bytes sent between ranks in float64 on a small problem.\n\nExit code 0: all checks passed. 1: a check failed. 3: PyTorch is not installed.\n\n\x08\nassay scaling test\nassay scaling test --nproc 2\ntorchrun --nproc_per_node=2 -m assay scaling test', (
        FlagRow('nproc', opts='--nproc', metavar='N', group='Options', help='Ranks.  [default: 1, or those of torchrun]'),
        FlagRow('gpus', opts='--gpus', style='list', metavar='0,1', group='Options', help='GPUs, by index or UUID.  [default: one per rank]', item='\\d+(/\\d+)?|(GPU|MIG)-\\S+'),
        FlagRow('devices', opts='--device', style='list', metavar='cpu', group='Options', help='Devices: cpu, cpu:0, cuda:1.', item='(cpu|cuda)(:\\d+(/\\d+)?)?'),
        FlagRow('timeout_s', opts='--timeout', metavar='TIME', group='Options', help='Worker response timeout.  [default: 2m]'),
        FlagRow('seed', opts='--seed', metavar='N', group='Options', help='Random seed.  [default: 0]'),
        AS_JSON,
    )),
    'threshold apply': VerbRow('assay.cli.threshold', 'Decide from RESULTS, a run folder or a JSON file, and write the configuration; measures nothing.\n\nExit code 1: the fast path failed its parity check; nothing is written.\n\n\x08\nassay threshold apply runs/latest --config configs/base.yaml\nassay threshold apply results.json --safety-margin 1.5 --dry-run', (
        FlagRow('results', style='argument', metavar='RESULTS', group='Options', required=True),
        FlagRow('config', opts='--config', metavar='FILE', group='Options', help='Configuration to update.  [default: configs/base.yaml]'),
        FlagRow('safety_margin', opts='--safety-margin', metavar='X', group='Options', help='1.2, or conservative, balanced, aggressive.  [default: as measured]'),
        FlagRow('decide_on', opts='--decide-on', metavar='[call|span|cautious]', group='Options', help='Time that decides.  [default: as measured]', choices=('call', 'span', 'cautious')),
        FlagRow('update', opts='--update-config/--dry-run', style='switch', group='Options', help='Write the thresholds, or only show them.'),
        AS_JSON,
    )),
    'threshold parse': VerbRow('assay.cli.threshold', 'Convert the output of an older benchmark to JSON.\n\nFILE is a text file, or - for stdin, with lines such as\n\n\x08\nS=256 w=32 sliding masked 0.12 ms  fa2 0.10 ms  speedup x1.20\nS=256 l=32 d=16 compressed masked 0.12 ms  fa2 0.10 ms  speedup x1.20\n\n`assay threshold apply` and `assay compare` accept the result. Parity and GPU are not part of such lines and stay\nnull.', (
        FILE,
        FlagRow('output', opts='--output -o', metavar='FILE', group='Options', help='Write to a file.  [default: stdout]'),
    )),
    'threshold run': VerbRow('assay.cli.threshold', 'Find the problem size from which a fast path is faster by a margin.\n\nMeasures both NSA branches, or the file THRESHOLDS. Exit code 1: a threshold rose above --baseline, or the fast path\nfailed its parity check; then nothing is written.\n\n\x08\nassay threshold run\nassay threshold run --quick --device cpu\nassay threshold run examples/thresholds.yaml --safety-margin 1.5\nassay threshold run --grid large --update-config --config configs/base.yaml\nassay threshold run --baseline results.json --unsure fail', (
        FlagRow('thresholds', style='argument', metavar='[THRESHOLDS]', group='Options'),
        FlagRow('grid', opts='--grid', metavar='NAME', group='What to measure', help='Grid of the file: small or large.  [default: its first]'),
        FlagRow('sizes', opts='--sizes', style='list', metavar='N...', group='What to measure', help='Measure only these sizes of the grid.', item='\\d+'),
        GPUS, DEVICES, CPU_GROUPS,
        FlagRow('safety_margin', opts='--safety-margin', metavar='X', group='How to decide', help='1.2, or conservative, balanced, aggressive.  [default: from the file]'),
        FlagRow('decide_on', opts='--decide-on', metavar='TIME', group='How to decide', help='Time that decides: call, span (kernels only), or cautious (the higher threshold).  [default: cautious]', choices=('call', 'span', 'cautious')),
        FlagRow('baseline', opts='--baseline', metavar='FILE', group='How to decide', help="Exit with code 1 if a threshold exceeds this file's."),
        UNSURE,
        FlagRow('duration_s', opts='--duration', metavar='TIME', group='How to measure', help='Time per process.  [default: 60s; 20s on a CPU]'),
        FlagRow('budget_s', opts='--budget', metavar='TIME', group='How to measure', help='Total time.  [default: 4m; 90s on a CPU]'),
        FlagRow('blocks', opts='--processes', metavar='N', group='How to measure', help='Maximum number of processes.  [default: 5]'),
        FlagRow('quick', opts='--quick', style='switch', group='How to measure', help='Quick first look: 2 processes, half the time.'),
        CACHE, ISOLATION, SEED, ON_INTERFERENCE, RETAKES, TIMEOUT_S_2, OPTIONS_FILE,
        FlagRow('output', opts='--output -o', metavar='FILE', group='Output', help='Write the results as JSON.'),
        FlagRow('report', opts='--report', metavar='FILE', group='Output', help='Write the report as Markdown.'),
        FlagRow('update_config', opts='--update-config', style='switch', group='Output', help='Write the thresholds to --config.'),
        FlagRow('config', opts='--config', metavar='FILE', group='Output', help='Configuration to update.  [default: configs/base.yaml]'),
        OUTPUT_DIR, NAME_HOST, DRY_RUN, AS_JSON, MONITOR, MONITOR_INTERVAL_S, HISTORY, ON, TIME, NODES, NPROC, SHIP,
        REMOTE_PYTHON, PARTITION, ACCOUNT, GRES, GPUS_PER_NODE, SBATCH_ARGS,
        FlagRow('provider', opts='--provider', metavar='TEXT', group='Rented GPUs', hidden=True),
        FlagRow('gpu_type', opts='--gpu-type', metavar='L4', group='Rented GPUs', help='GPU model; T4,L4 rents one of each.', aliases='--gpu'),
        IMAGE, MAX_COST,
    )),
    'time': VerbRow('assay.cli.time', 'Time a function or workload, or compare several with the first.\n\nA TARGET is file.py:function, package.module:function, or a workload such as softmax or softmax@numpy.\nEach fresh process is one sample; the confidence interval covers the mean over process starts.\n\n\x08\nassay time path/to/file.py:function\nassay time old.py:work new.py:work\nassay time softmax --device cpu --param rows=4096', (
        FlagRow('targets', style='arguments', metavar='TARGET...', group='Options'),
        FlagRow('params', opts='--param', style='many', metavar='NAME=VALUE', group='What to measure', help='Set a parameter of the targets.'),
        FlagRow('device', opts='--device', metavar='cpu', group='What to measure', help='cpu, cuda or cuda:1.  [default: a GPU if a target uses one]'),
        CACHE,
        FlagRow('method', opts='--method', metavar='METHOD', group='How to measure', help='GPU timer: auto, graph, queue, trace or wall.  [default: auto]', choices=('auto', 'graph', 'queue', 'trace', 'wall')),
        FlagRow('precision', opts='--precision', metavar='PERCENT', group='How to measure', help='Stop at this precision (one target).  [default: 1%]'),
        FlagRow('processes', opts='--processes', metavar='N', group='How to measure', help='Number of fresh processes.  [default: 5]'),
        FlagRow('budget_s', opts='--budget', metavar='TIME', group='How to measure', help='Total time.  [default: 30s on a GPU, else 10s]'),
        FlagRow('decide_on', opts='--decide-on', metavar='[busy|span|call]', group='How to measure', help='Time that decides between several targets.', choices=('busy', 'span', 'call')),
        MINIMUM_EFFECT_2,
        FlagRow('timeout_s', opts='--timeout', metavar='TIME', group='How to measure', help='Time limit for a single call.  [default: 1m]'),
        FlagRow('lock_mhz', opts='--lock-clock', metavar='MHZ', group='How to measure', help='Lock the GPU clock while timing.'),
        SEED, AS_JSON,
    )),
    'trace': VerbRow('assay.cli.trace', 'Trace every kernel of a workload, with clocks, power and counters.\n\nA WORKLOAD is one of `assay list`, such as softmax or softmax@torch, or file.py:function.\n\n\x08\nassay trace softmax\nassay trace path/to/file.py:function --gpus 1 --calls 3\nassay trace softmax@numpy --device cpu --csv kernels.csv', (
        FlagRow('workload', style='argument', metavar='WORKLOAD', group='Options', required=True),
        PARAMS, GPUS,
        FlagRow('device', opts='--device', metavar='cpu', group='What to measure', help='cpu, cuda or cuda:1.  [default: a GPU if present]'),
        FlagRow('calls', opts='--calls', metavar='N', group='How to measure', help='Calls to trace, back to back.  [default: 10]'),
        FlagRow('warmup', opts='--warmup', metavar='N', group='How to measure', help='Warm-up calls.  [default: 3]'),
        FlagRow('counters', opts='--counters', metavar='[auto|ncu|none]', group='How to measure', help='Read hardware counters with ncu; `ncu` fails if they cannot be read.  [default: auto]', choices=('auto', 'ncu', 'none')),
        FlagRow('timeout_s', opts='--timeout', metavar='TIME', group='How to measure', help='Time limit for the calls and for ncu.  [default: 2m]'),
        SEED,
        FlagRow('csv', opts='--csv', metavar='FILE', group='Output', help='Also write the kernels as CSV.'),
        PERFETTO, OUTPUT_DIR,
        FlagRow('print_commands', opts='--print-commands', style='switch', group='Output', help='Only print command lines for ncu and nsys.'),
        AS_JSON,
    )),
}
