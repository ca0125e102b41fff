"""Tables: files with a row for each datum. This package turns their rows into data, and data into rows."""
