"""The rules of the protocol: each can be left out of the model by its name, and then there is a violation."""

from __future__ import annotations

WRITER = {
    "sync files": "a file is synced before the commit",
    "sync directories": "a directory is synced before the commit",
    "sync log": "a commit is synced in the log before it is acknowledged",
    "sync main": "a checkpoint syncs the main file before the log begins again",
    "settle log": "a writer commits in the place of what a killed one has written, before it changes a file",
    "keep tried": "nothing is undone after the sync of a commit failed: a power cut may keep the commit",
    "commit first": "a new generation gets its NAME after the commit",
    "link old": "the old generation has a hidden name before NAME is replaced",
    "no older reader": "old generations go when nobody reads an older snapshot",
    "hide new": "a new segment has a hidden name until the commit",
    "never replace": "a new segment does not get its NAME in the place of another file",
    "sync before unlink": "the NAME of a new segment is durable before its hidden name goes",
    "hide dropped": "a dropped segment is renamed to its hidden name before the commit",
    "sync dropped": "that rename is synced before the commit",
    "verify files": "a hidden file gets NAME only if it agrees with the facts",
    "verify linked": "what was linked or renamed to a hidden name is compared with the facts",
    "keep foreign": "what is in the way at NAME goes to quarantine",
    "keep hidden": "nothing hidden is removed while the index is not trusted",
    "restore": "a fix gives the newest hidden generation its NAME back",
    "sync set aside": "NAME is durable before a fix takes the hidden name of the same file away",
    "new numbers": "an index that replaces a lost one counts on above all hidden names",
    "separate": "an append does not write to a file that has other names",
    "rows first": "the rows of a generation that is kept are written before the commit",
    "bytes first": "the removal of what was kept is synced before its rows go",
    "keep damaged": "a damaged file has a name in quarantine before a heal replaces it",
}

MOVES = {
    "new generation": "a move gives the segment a new generation",
    "never reuse": "what stands at the hidden name of a new generation goes before the file gets it",
    "sync upwards": "a folder that is made for a move is synced in the folder above it before the commit",
    "link merged": "what a merge replaces has a hidden name before the commit",
    "one commit": "the commit that adds the row at the target removes the one at the source",
    "moved from": "the row at the target says where the segment came from, until the source is gone",
    "keep source": "the source keeps its NAME until the commit",
    "target first": "the source goes only while the target's file is there",
    "same inode": "the source goes only if it is the inode that was moved",
    "only replaced": "what stands at NAME is replaced only if it is the generation that the new one was written from",
    "hide source": "the source has its hidden name until no reader is older",
    "sync source": "that the source's NAME is gone is synced before the row stops to say where the segment came from",
    "folder first": "the archive's folder is renamed before the commit",
    "sync renamed": "that rename is synced before the commit",
    "follow": "who looks at all segments commits first that the folder was renamed, if the writer was killed",
    "sync followed": "and syncs the rename before that commit: the killed writer may not have done so",
    "leave renamed": "until then, nothing hidden in that folder is removed",
    "close": "when the source is gone, a commit says so",
}

BY_HAND = {
    "keep copies": "no visible second copy is removed, and no segment rewritten that contains one",
    "keep empty": "no empty file is removed that the index does not know",
    "copy unknown": "an append copies a file that the index does not know, and puts the file itself in quarantine",
    "keep tail": "what follows the committed bytes is copied to quarantine before an append cuts it",
    "take over": "data of a segment without a file are taken over by the file that has them",
    "one commit for both": "a commit that takes data over removes them from the other row",
    "sync taken over": "a file is synced before it takes data over",
    "compare data": "while the index is not trusted, files of one name are compared datum by datum",
}

IDENTITY = {
    "identity": "nothing is moved to an archive whose `.place` is absent or older, or forgotten there",
    "older place": "an older `.place` inside is as bad as none",
    "beside": "a second `.place`, on the dataset's disk, says which archives there are",
    "inside first": "`.place` is written inside before it is written beside",
    "mark first": "`.place` is written before the commit",
    "mark left": "a move out of an archive writes `.place`, too",
    "mark rewritten": "a repack of an archive writes `.place`, too",
    "mark read": "a fix that reads a file of an archive writes `.place`, too",
}

READER = {
    "hidden first": "a reader looks at the hidden name before NAME",
    "look again": "a reader looks at the hidden name again after NAME",
    "start again": "a reader that has found nothing looks again from the start",
    "look elsewhere": "a reader that does not find a file of the archive looks for it in the renamed folder",
    "hidden elsewhere": "a reader looks for hidden names in the renamed folder, too",
    "look again elsewhere": "there, too, it looks at the hidden name again after NAME",
    "verify": "a reader compares what it has found with the facts",
    "newest": "who finds data in an archive of which the snapshot knows none looks in the newest index",
    "still there": "and then whether the archive still says that it has data",
    "kept last": "who reads what was dropped looks at the hidden name before that of what is kept",
}

RULES = WRITER | MOVES | BY_HAND | IDENTITY | READER
