BEGIN TRANSACTION;
CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL, CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num));
INSERT INTO "alembic_version" VALUES('0004');
CREATE TABLE archive (
	uuid TEXT NOT NULL, 
	name TEXT NOT NULL, 
	"begin" INTEGER, 
	"end" INTEGER, 
	seq INTEGER NOT NULL, 
	generation INTEGER NOT NULL, 
	count INTEGER NOT NULL, 
	PRIMARY KEY (uuid)
)
 WITHOUT ROWID,
 STRICT

;
CREATE TABLE archived_deletion (
	archive TEXT NOT NULL, 
	first INTEGER NOT NULL, 
	last INTEGER NOT NULL, 
	PRIMARY KEY (archive, first)
)
 WITHOUT ROWID,
 STRICT

;
CREATE TABLE block (
	segment INTEGER NOT NULL, 
	"offset" INTEGER NOT NULL, 
	position INTEGER NOT NULL, 
	stored INTEGER NOT NULL, 
	PRIMARY KEY (segment, "offset")
)
 WITHOUT ROWID,
 STRICT

;
CREATE TABLE dataset (
	id INTEGER NOT NULL, 
	uuid TEXT NOT NULL, 
	seq INTEGER NOT NULL, 
	generation INTEGER NOT NULL, 
	config TEXT NOT NULL, 
	committed_at INTEGER NOT NULL, 
	lost INTEGER DEFAULT 0 NOT NULL, 
	expired INTEGER DEFAULT 0 NOT NULL, 
	PRIMARY KEY (id)
)
 STRICT

;
INSERT INTO "dataset" VALUES(1,'09c48c41-d7c1-4200-9f58-8e11dfd9b411',13,1,'{"step": "daily", "unique": ["reftime", "area"], "index": ["area"], "fields": {"area": "text", "product": "text"}}',1795803022382352,0,0);
CREATE TABLE datum (
	seq INTEGER NOT NULL, 
	reftime INTEGER NOT NULL, 
	segment INTEGER NOT NULL, 
	"offset" INTEGER NOT NULL, 
	size INTEGER NOT NULL, 
	f_area INTEGER DEFAULT 0 NOT NULL, 
	f_product INTEGER DEFAULT 0 NOT NULL, 
	PRIMARY KEY (seq)
)
 STRICT

;
INSERT INTO "datum" VALUES(1,1795132800000000,1,0,34,1,5);
INSERT INTO "datum" VALUES(2,1795154400000000,1,35,34,2,5);
INSERT INTO "datum" VALUES(3,1795176000000000,1,70,34,3,5);
INSERT INTO "datum" VALUES(4,1795197600000000,1,105,34,4,5);
CREATE TABLE deletion (
	seq INTEGER NOT NULL, 
	datum INTEGER NOT NULL, 
	forgotten INTEGER DEFAULT 0 NOT NULL, 
	PRIMARY KEY (seq)
)
 STRICT

;
CREATE TABLE difference (
	seq INTEGER NOT NULL, 
	kind INTEGER NOT NULL, 
	reason TEXT NOT NULL, 
	PRIMARY KEY (seq)
)
 STRICT

;
CREATE TABLE done (
	source TEXT NOT NULL, 
	part ANY NOT NULL, 
	PRIMARY KEY (source, part)
)
 WITHOUT ROWID,
 STRICT

;
CREATE TABLE segment (
	id INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	format TEXT NOT NULL, 
	size INTEGER NOT NULL, 
	"begin" INTEGER NOT NULL, 
	"end" INTEGER NOT NULL, 
	mtime INTEGER NOT NULL, 
	checked_at INTEGER, 
	checked TEXT, 
	length INTEGER DEFAULT 0 NOT NULL, 
	count INTEGER DEFAULT 0 NOT NULL, 
	compressed INTEGER DEFAULT 0 NOT NULL, 
	inode INTEGER, 
	tail INTEGER, 
	checksum INTEGER, 
	unread INTEGER DEFAULT 0 NOT NULL, 
	deleted INTEGER, 
	kind INTEGER DEFAULT 0 NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (name)
)
 STRICT

;
INSERT INTO "segment" VALUES(1,'2026/11-20.vm2','vm2',140,1795132800000000,1795219200000000,1795803021908720128,NULL,NULL,140,0,0,2146371,3211794340,3211794340,0,0,0);
CREATE TABLE session (
	first INTEGER NOT NULL, 
	id INTEGER NOT NULL, 
	committed_at INTEGER NOT NULL, 
	PRIMARY KEY (first)
)
 STRICT

;
INSERT INTO "session" VALUES(1,8015740548599136891,1795803022382352);
CREATE TABLE source (
	uuid TEXT NOT NULL, 
	replica TEXT NOT NULL, 
	session INTEGER NOT NULL, 
	"offset" INTEGER NOT NULL, 
	index_start INTEGER NOT NULL, 
	"key" BLOB NOT NULL, 
	host TEXT NOT NULL, 
	port INTEGER NOT NULL, 
	bytes_read INTEGER NOT NULL, 
	committed_at INTEGER NOT NULL, 
	PRIMARY KEY (uuid)
)
 WITHOUT ROWID,
 STRICT

;
CREATE TABLE value (
	id INTEGER NOT NULL, 
	value ANY NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (value)
)
 STRICT

;
INSERT INTO "value" VALUES(1,'VM2,101');
INSERT INTO "value" VALUES(2,'VM2,102');
INSERT INTO "value" VALUES(3,'VM2,103');
INSERT INTO "value" VALUES(4,'VM2,104');
INSERT INTO "value" VALUES(5,'VM2,227');
CREATE UNIQUE INDEX datum_unique ON datum (reftime, f_area);
CREATE INDEX datum_by_area ON datum (f_area, reftime);
CREATE VIEW data AS SELECT strftime('%Y-%m-%dT%H:%M:%S', (datum.reftime - ((datum.reftime % 1000000 + 1000000) % 1000000)) / 1000000, 'unixepoch') || iif(((datum.reftime % 1000000 + 1000000) % 1000000), printf('.%06d', ((datum.reftime % 1000000 + 1000000) % 1000000)), '') || 'Z' AS reftime, (SELECT value FROM value WHERE id = datum.f_area) AS "area", (SELECT value FROM value WHERE id = datum.f_product) AS "product", segment.name AS segment, datum.offset, datum.size, datum.seq FROM datum JOIN segment ON segment.id = datum.segment;
COMMIT;
