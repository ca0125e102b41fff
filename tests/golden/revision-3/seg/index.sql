BEGIN TRANSACTION;
CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL, CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num));
INSERT INTO "alembic_version" VALUES('0003');
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
INSERT INTO "block" VALUES(2,12,19,165);
INSERT INTO "block" VALUES(3,12,19,165);
CREATE TABLE dataset (
	id INTEGER NOT NULL, 
	uuid TEXT NOT NULL, 
	seq INTEGER NOT NULL, 
	generation INTEGER NOT NULL, 
	config TEXT NOT NULL, 
	committed_at INTEGER NOT NULL, 
	PRIMARY KEY (id)
)
 STRICT

;
INSERT INTO "dataset" VALUES(1,'13672423-2985-4b93-b3d7-e2a54c5a947e',13,3,'{"step": "daily", "unique": ["reftime", "area"], "index": ["area"], "fields": {"area": "text", "product": "text"}}',1795356885351119);
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
INSERT INTO "datum" VALUES(5,1795219200000000,2,12,89,1,5);
INSERT INTO "datum" VALUES(7,1795226400000000,2,190,89,3,5);
INSERT INTO "datum" VALUES(8,1795230000000000,2,279,89,4,5);
INSERT INTO "datum" VALUES(9,1795305600000000,3,12,89,1,5);
INSERT INTO "datum" VALUES(10,1795309200000000,3,101,89,2,5);
INSERT INTO "datum" VALUES(11,1795312800000000,3,190,89,3,5);
INSERT INTO "datum" VALUES(12,1795316400000000,3,279,89,4,5);
CREATE TABLE deletion (
	seq INTEGER NOT NULL, 
	datum INTEGER NOT NULL, 
	PRIMARY KEY (seq)
)
 STRICT

;
INSERT INTO "deletion" VALUES(13,6);
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
	PRIMARY KEY (id), 
	UNIQUE (name)
)
 STRICT

;
INSERT INTO "segment" VALUES(2,'2026/11-21.seg','seg',184,1795219200000000,1795305600000000,1795356885333337189,NULL,NULL,368,4,1);
INSERT INTO "segment" VALUES(3,'2026/11-22.seg','seg',184,1795305600000000,1795392000000000,1795356885333425000,NULL,NULL,368,4,1);
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
