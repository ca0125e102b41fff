"""Pages for people: what a dataset contains, for when, what is missing, what it looks like, and whether it is healthy.

    routes ── what a page shows (calendar, match, content, points, ways, health) ── templates

Pages are made on the server, from the templates beside this file. They work without JavaScript; only the plot needs it.
All values in them are escaped, and `Content-Security-Policy` allows no script but the files in `static/`.
"""
