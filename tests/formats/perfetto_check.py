"""Compares a Perfetto file with the trace it was made from: perfetto_check.py TRACE FILE"""

import sys

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as perfetto

from trace import Trace, cut

EVENT = perfetto.TrackEvent


class File:
    """The packets as an importer reads them: tracks, the slices on them, instants and counters."""

    def __init__(self, path):
        self.tracks, self.slices, self.instants, self.counters, self.open = {}, {}, [], {}, {}
        self.names, self.frames = [{}, {}, {}], {}
        trace = perfetto.Trace()
        with open(path, "rb") as file:
            trace.ParseFromString(file.read())
        assert trace.packet, "there is no packet"
        assert all(packet.trusted_packet_sequence_id == 1 for packet in trace.packet)
        assert trace.packet[0].sequence_flags == perfetto.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        for packet in trace.packet:
            if packet.HasField("track_descriptor"):
                self.tracks[packet.track_descriptor.uuid] = packet.track_descriptor
        events = []
        for packet in trace.packet:
            if packet.sequence_flags & perfetto.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED:
                self.names, self.frames = [{}, {}, {}], {}
            data = packet.interned_data
            for names, new in zip(self.names, (data.event_categories, data.event_names, data.debug_annotation_names)):
                names.update({one.iid: one.name for one in new})
            self.frames.update({one.iid: one.str.decode() for one in data.debug_annotation_string_values})
            if packet.HasField("track_event"):
                event = packet.track_event
                name = self.names[1][event.name_iid] if event.name_iid else None
                for note in event.debug_annotations:
                    note.name = self.names[2][note.name_iid]
                    for value in note.array_values:
                        if value.string_value_iid:
                            value.string_value = self.frames[value.string_value_iid]
                events.append((packet.timestamp, event, name))
        # an importer sorts by time and keeps the order of events of the same time
        for at, event, name in sorted(events, key=lambda event: event[0]):
            self.take(at, event, name)
        assert not any(self.open.values()), "slices without an end"

    def take(self, at, event, name):
        assert event.track_uuid in self.tracks, f"track {event.track_uuid} is not described"
        path = self.open.setdefault(event.track_uuid, [])
        if event.type == EVENT.TYPE_SLICE_BEGIN:
            slices = self.slices.setdefault(event.track_uuid, [])
            path.append(len(slices))
            slices.append([name, at, None, len(path) - 1, event])
        elif event.type == EVENT.TYPE_SLICE_END:
            self.slices[event.track_uuid][path.pop()][2] = at
        elif event.type == EVENT.TYPE_INSTANT:
            self.instants.append((event.track_uuid, at, name))
        elif event.type == EVENT.TYPE_COUNTER:
            self.counters.setdefault(event.track_uuid, []).append(event.counter_value)
        else:
            raise AssertionError(f"event of type {event.type}")

    def threads(self):
        threads = {}
        for uuid, slices in self.slices.items():
            thread = self.tracks[uuid].thread
            key = (thread.pid, thread.tid)
            assert key not in threads, f"two tracks of thread {key}"
            threads[key] = slices
        return threads


def equal(what, got, expected):
    assert got == expected, f"{what}: {got!r}, not {expected!r}"


def check(trace, file):
    threads = file.threads()
    expected = trace.slices()
    equal("threads", sorted(threads), sorted(expected))
    for key, slices in expected.items():
        equal(f"slices of {key}", [tuple(slice[:4]) for slice in threads[key]], slices)
    by_id = {call.id: call.line for call in trace.calls}
    for slices in threads.values():
        for *_, event in slices:
            notes = {note.name: note for note in event.debug_annotations}
            line = by_id[notes["event_id"].uint_value]
            # in traces of format 1, memory calls without an effect have a kind too
            has_kind = line["type"] != "memory" or "size" in line or "freed" in line
            expected = {field: line.get(field) for field in ("error", "kernel", "api")}
            expected["kind"] = line.get("kind") if has_kind else None
            for field, text in expected.items():
                equal(field, notes[field].string_value if field in notes else None, text)
            for field in ("size", "freed"):
                equal(field, notes[field].uint_value if field in notes else None, line.get(field))
            if "stack" in line:
                equal("innermost frame", notes["stack"].array_values[0].string_value, cut(line["stack"][0]))
            equal("args", len(notes["args"].dict_entries) if "args" in notes else 0, len(line.get("args", {})))
    names = {call.thread[0]: call.process for call in trace.calls}
    described = {track.process.pid: track.process.process_name for track in file.tracks.values() if track.process.pid}
    first = {}
    for call in trace.calls:
        first.setdefault(call.thread[0], call.process)
    equal("processes", {pid: described.get(pid) for pid in names}, first)
    check_streams(trace, file)
    losses = [name for uuid, _, name in file.instants if file.tracks[uuid].name == "lost"]
    equal("losses", losses, [loss["name"] for loss in trace.losses])


def check_streams(trace, file):
    """Operations submitted to streams: outermost calls that succeeded and were not captured into a graph."""
    ops = [call for call in trace.calls if call.line["type"] in ("launch", "transfer")]
    ids = {call.id for call in ops}
    submitted = [call for call in ops if call.parent not in ids and call.line.get("ret") == 0]
    submitted = [call for call in submitted if not call.line.get("captured")]
    on_streams = [uuid for uuid, _, _ in file.instants if "stream" in file.tracks[uuid].name]
    equal("operations on streams", len(on_streams), len(submitted))
    copied = {}
    for call in submitted:
        if call.line["type"] == "transfer" and "size" in call.line:
            copied[call.thread[0]] = min(copied.get(call.thread[0], 0) + call.line["size"], 2**63 - 1)
    tracks = {uuid: file.tracks[uuid] for uuid in file.counters}
    pids = {uuid: track.process.pid for uuid, track in file.tracks.items()}
    last = {pids[track.parent_uuid]: file.counters[uuid][-1] for uuid, track in tracks.items() if track.name == "copied"}
    equal("bytes copied", last, copied)


trace = Trace(sys.argv[1])
assert trace.calls, "the trace has no calls to compare"
check(trace, File(sys.argv[2]))
