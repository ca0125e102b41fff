BEGIN TRANSACTION;
CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL, CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num));
INSERT INTO "alembic_version" VALUES('0001');
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
INSERT INTO "dataset" VALUES(1,'ab33176d-0139-435b-8adf-4a2ad7e63297',11,2,'{"step": "daily", "unique": ["reftime", "area", "product"], "index": ["area"], "fields": {"area": "text", "product": "text"}}',1795270761194952);
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
INSERT INTO "datum" VALUES(1,1795132800000000,1,0,35,1,4);
INSERT INTO "datum" VALUES(2,1795132800000000,1,36,35,2,4);
INSERT INTO "datum" VALUES(4,1795136400000000,1,109,36,2,5);
INSERT INTO "datum" VALUES(5,1795219200000000,2,0,34,1,4);
INSERT INTO "datum" VALUES(7,1795222800000000,2,71,34,3,4);
INSERT INTO "datum" VALUES(8,1795136400000000,1,146,36,1,4);
INSERT INTO "datum" VALUES(9,1795215600000000,1,183,34,6,4);
CREATE TABLE deletion (
	seq INTEGER NOT NULL, 
	datum INTEGER NOT NULL, 
	PRIMARY KEY (seq)
)
 STRICT

;
INSERT INTO "deletion" VALUES(10,3);
INSERT INTO "deletion" VALUES(11,6);
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
	PRIMARY KEY (id), 
	UNIQUE (name)
)
 STRICT

;
INSERT INTO "segment" VALUES(1,'2026/11-20.vm2','vm2',218,1795132800000000,1795219200000000,1795270761096072760,NULL,NULL);
INSERT INTO "segment" VALUES(2,'2026/11-21.vm2','vm2',106,1795219200000000,1795305600000000,1795270761062022415,NULL,NULL);
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
INSERT INTO "value" VALUES(4,'VM2,1');
INSERT INTO "value" VALUES(5,'VM2,227');
INSERT INTO "value" VALUES(6,'VM2,104');
CREATE UNIQUE INDEX datum_unique ON datum (reftime, f_area, f_product);
CREATE INDEX datum_by_area ON datum (f_area, reftime);
CREATE VIEW data AS SELECT strftime('%Y-%m-%dT%H:%M:%S', (datum.reftime - ((datum.reftime % 1000000 + 1000000) % 1000000)) / 1000000, 'unixepoch') || iif(((datum.reftime % 1000000 + 1000000) % 1000000), printf('.%06d', ((datum.reftime % 1000000 + 1000000) % 1000000)), '') || 'Z' AS reftime, (SELECT value FROM value WHERE id = datum.f_area) AS "area", (SELECT value FROM value WHERE id = datum.f_product) AS "product", segment.name AS segment, datum.offset, datum.size, datum.seq FROM datum JOIN segment ON segment.id = datum.segment;
COMMIT;
