#!/bin/sh
# The main job on a sample dataset, on the command line: `make demo`. It deletes demo/ and creates everything in it again.
set -eu
cd "$(dirname "$0")/.."
rm -rf demo
mkdir demo

say() { printf '\n%s\n' "$*"; }
run() { printf '$ %s\n' "$1"; eval "$1"; }

say "1. A dataset is a folder. Its configuration says how data are divided into files, and which fields identify a datum."
run "cat sample_datasets/observations.toml"
run "ondisk init demo/weather --config sample_datasets/observations.toml"

say "2. The first delivery: three days of six weather stations, in VM2, a line for each observation."
run "ondisk append demo/weather sample_datasets/observations-1.vm2"

say "3. The second: a fourth day, a late afternoon, and six hours that are stored already. These are duplicates, and are skipped."
run "ondisk append demo/weather sample_datasets/observations-2.vm2"

say "4. Appending the first delivery again changes nothing."
run "ondisk append demo/weather sample_datasets/observations-1.vm2"

say "5. The wind at Stonebridge (station 104, variable 3) in the afternoon that came late:"
run "ondisk query demo/weather 'reftime: =2026-11-18, >=12:00; area: VM2,104; product: VM2,3' --limit 4"

say "6. The same for programs, one JSON object a line:"
run "ondisk query demo/weather 'reftime: =2026-11-18, >=12:00; area: VM2,104; product: VM2,3' --limit 2 --json"

say "7. Count the data of 20 November:"
run "ondisk summary demo/weather 'reftime: =2026-11-20'"

say "8. Deleting is a dry run until you add --yes."
# A dry run with work to do ends with exit code 9.
run "ondisk delete demo/weather 'reftime: <2026-11-18'" || [ $? -eq 9 ]
run "ondisk delete demo/weather 'reftime: <2026-11-18' --yes"
run "ondisk summary demo/weather"

say "9. On disk: segments that any program can read, and an index that any SQLite can read."
run "find demo/weather -type f | sort"
run "tail -n 2 demo/weather/2026/11-20.vm2"

say "10. The native format stores events: any metadata, any content, a checksum for each. The Beats disk queue writes it, too."
run "ondisk init demo/events --config sample_datasets/beats.toml"
run "ondisk append demo/events sample_datasets/beats-queue/*.seg"
run "ondisk query demo/events 'pipeline: p' --json"

say "11. A crash or a bad disk: ondisk stores whole data, and reports what it skipped."
run "head -c 1500 sample_datasets/beats-queue/2.seg > demo/cut.seg"
run "ondisk init demo/salvaged --config sample_datasets/beats.toml"
# Damaged input ends with exit code 8.
run "ondisk append demo/salvaged demo/cut.seg" || [ $? -eq 8 ]
run "ondisk summary demo/salvaged"

say "12. Deleted data still take space: check reports it, and repack frees it. That, too, is a dry run until you add --yes."
# Findings end with exit code 9.
run "ondisk check demo/weather" || [ $? -eq 9 ]
run "ondisk repack demo/weather --yes"

say "13. Worse: the index is lost, and a segment ends in the middle of a datum."
run "rm demo/weather/index.sqlite*"
run "head -c 10000 demo/weather/2026/11-19.vm2 > demo/cut.vm2 && mv demo/cut.vm2 demo/weather/2026/11-19.vm2"
run "ondisk check demo/weather" || [ $? -eq 9 ]

say "14. fix rebuilds the index from the segments, because they contain every datum with its metadata."
# What was lost is counted, and exit code 8 says so.
run "ondisk fix demo/weather --yes" || [ $? -eq 8 ]
run "ondisk summary demo/weather"

say "15. repack cuts off the rest of the cut datum, and keeps these bytes in quarantine. maintain does all of this, for cron."
# Something was moved to quarantine: exit code 9.
run "ondisk repack demo/weather --yes" || [ $? -eq 9 ]
run "ondisk maintain demo/weather demo/events demo/salvaged"

say "16. Spark reads the same folder, on this machine or on a cluster: the mean wind of each station."
if java -version 2>/dev/null; then
    run "cat sample_datasets/wind.py"
    run "python sample_datasets/wind.py demo/weather 2>/dev/null"
else
    echo "Spark needs Java 17, which is missing here."
fi

cat <<'END'

Next: README.md shows the same in Python. docs/match.md describes queries, docs/choosing.md the choice of a configuration,
docs/csv.md, docs/tables.md and docs/files.md how tables and files become data and data become these again,
docs/backup.md backups, docs/maintenance.md what cron should run, docs/spark.md Spark. docs/README.md lists all pages.
Try it on this dataset:  . .venv/bin/activate && ondisk query demo/weather "reftime: %6h; area: VM2,101"
END
