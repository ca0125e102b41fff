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
INSERT INTO "archive" VALUES('09c48c41-d7c1-4200-9f58-8e11dfd9b411','last',1795132800000000,1795219200000000,13,1,4);
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
INSERT INTO "dataset" VALUES(1,'39bcf7e9-2fec-477c-a208-5f0d2f3640ea',13,3,'{"step": "daily", "unique": ["reftime", "area"], "index": ["area"], "fields": {"area": "text", "product": "text"}}',1795803022397238,0,0);
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
INSERT INTO "datum" VALUES(5,1795219200000000,2,0,34,1,5);
INSERT INTO "datum" VALUES(7,1795262400000000,2,70,34,3,5);
INSERT INTO "datum" VALUES(8,1795284000000000,2,105,34,4,5);
INSERT INTO "datum" VALUES(9,1795305600000000,3,0,34,1,5);
INSERT INTO "datum" VALUES(10,1795327200000000,3,35,34,2,5);
INSERT INTO "datum" VALUES(11,1795348800000000,3,70,35,3,5);
INSERT INTO "datum" VALUES(12,1795370400000000,3,106,35,4,5);
CREATE TABLE deletion (
	seq INTEGER NOT NULL, 
	datum INTEGER NOT NULL, 
	forgotten INTEGER DEFAULT 0 NOT NULL, 
	PRIMARY KEY (seq)
)
 STRICT

;
INSERT INTO "deletion" VALUES(13,6,0);
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
INSERT INTO "segment" VALUES(2,'2026/11-21.vm2','vm2',140,1795219200000000,1795305600000000,1795803021908911126,NULL,NULL,140,0,0,2146372,626737801,626737801,0,35,0);
INSERT INTO "segment" VALUES(3,'2026/11-22.vm2','vm2',142,1795305600000000,1795392000000000,1795803021909043113,NULL,NULL,142,0,0,2146373,2433663943,2433663943,0,0,0);
CREATE TABLE session (
	first INTEGER NOT NULL, 
	id INTEGER NOT NULL, 
	committed_at INTEGER NOT NULL, 
	PRIMARY KEY (first)
)
 STRICT

;
INSERT INTO "session" VALUES(1,1606495364883476660,1795803021911300);
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
