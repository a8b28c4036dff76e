CREATE TABLE assay_schema_version (version INTEGER NOT NULL);

INSERT INTO assay_schema_version (version) VALUES (1);

CREATE TABLE assay_runs (
    number INTEGER NOT NULL PRIMARY KEY, id TEXT NOT NULL UNIQUE, experiment TEXT NOT NULL,
    started_s DOUBLE PRECISION NOT NULL, host TEXT NOT NULL, hostname TEXT, host_class TEXT NOT NULL,
    driver TEXT, git_commit TEXT, git_dirty INTEGER, versions TEXT NOT NULL, options_digest TEXT NOT NULL,
    origin TEXT NOT NULL, folder TEXT NOT NULL, headline TEXT NOT NULL, trials INTEGER NOT NULL,
    failed INTEGER NOT NULL, lines INTEGER NOT NULL, state TEXT NOT NULL);

CREATE TABLE assay_series (
    number INTEGER NOT NULL PRIMARY KEY, key TEXT NOT NULL UNIQUE, workload TEXT NOT NULL, impl TEXT NOT NULL,
    params TEXT NOT NULL, params_digest TEXT NOT NULL, config TEXT, project TEXT, location TEXT NOT NULL,
    gpu TEXT, device TEXT, device_kind TEXT NOT NULL, conditions TEXT NOT NULL, quantity TEXT NOT NULL,
    unit TEXT NOT NULL);

CREATE TABLE assay_points (
    series INTEGER NOT NULL, run INTEGER NOT NULL, value DOUBLE PRECISION, low DOUBLE PRECISION,
    high DOUBLE PRECISION, n INTEGER NOT NULL, scope TEXT, status TEXT NOT NULL, reason TEXT,
    PRIMARY KEY (series, run));

INSERT INTO assay_runs (number, id, experiment, started_s, host, hostname, host_class, driver, git_commit, git_dirty, versions, options_digest, origin, folder, headline, trials, failed, lines, state)
VALUES (1, '5d32e1d53762', 'run', 1767225600.0, '0123456789abcdef', NULL, 'Example 9000, 4 cores', NULL, NULL, NULL, '{"assay":"1"}', '44136fa355b3', 'real', '/home/me/runs/run-20260101-000000-4f2a', 'It took a while.', 1, 0, 2, '9094aee19a5e25cb');

INSERT INTO assay_series (workload, impl, params, config, project, location, gpu, device, device_kind, conditions, quantity, number, key, params_digest, unit)
VALUES ('softmax', 'numpy', '{"rows":0}', NULL, NULL, 'Example 9000, 4 cores', NULL, 'cpu:0', 'cpu', '{"isolation":"full"}', 'call_us', 1, '63a45ba0d31d', '23193d3a6f66', 'µs');

INSERT INTO assay_points (series, run, value, low, high, n, scope, status, reason)
VALUES (1, 1, 10.0, 9.9, 10.1, 10, 'run', 'ok', NULL);
