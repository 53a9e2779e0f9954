//! Sampled processes with threads of every kind.

use std::sync::Arc;

use gpuprobe_analysis::gpu_state::IndexedGpu;
use gpuprobe_analysis::{
    GpuCall, GpuErrors, GpuStates, GpuUser, LastOperation, Rank, RecentXid, RecentXids, SampledProcess,
    SampledThread, ThreadSample, ThreadStack,
};
use gpuprobe_event::{Api, Frame, GpuState, PciAddress, Tgid, Tid};

use crate::samples::live_calls::open_calls;

const SECOND: u64 = 1_000_000_000;

pub(crate) fn native(function: &str, module: &str) -> Frame {
    Frame {
        address: 0x55aa,
        function: (!function.is_empty()).then(|| function.to_owned()),
        offset: 0x4f,
        module: Some(module.to_owned()),
        ..Frame::default()
    }
}

fn python(function: &str, file: &str, line: u32) -> Frame {
    let function = Some(function.to_owned());
    Frame { function, file: Some(file.to_owned()), line: Some(line), python: true, ..Frame::default() }
}

/// The frames of the program around a call, at this line.
fn program(line: u32) -> Vec<Frame> {
    vec![
        python("all_reduce", "/opt/lib/python3.11/site-packages/torch/distributed/c10d.py", 2501),
        python("step", "/home/user/train.py", line),
        python("<module>", "/home/user/train.py", 120),
        native("Py_BytesMain", "python3.11"),
        native("main", "python3.11"),
    ]
}

/// A stack in a GPU call, around which these frames are.
fn in_call(api: Api, function: &str, library: &str, outside: Vec<Frame>) -> ThreadStack {
    let inside = vec![native("__poll", "libc.so.6"), native(function, library)];
    ThreadStack {
        frames: [inside, outside].concat(),
        gpu_call: Some(GpuCall { api, function: function.to_owned(), frame: 1, slot: 0x7ffe_0010 }),
        ..ThreadStack::default()
    }
}

fn sleeping(at_ns: u64, stack: &Arc<ThreadStack>) -> ThreadSample {
    ThreadSample {
        at_ns,
        state: 'S',
        system_call: Some(202),
        wait_channel: Some("futex_wait_queue".to_owned()),
        cpu_ns: 5 * SECOND,
        waits: 12,
        stack: Arc::clone(stack),
        caller_state: 7,
    }
}

/// A thread that sleeps for a second.
pub(crate) fn asleep(tid: u32, name: &str, stack: ThreadStack) -> SampledThread {
    let stack = Arc::new(stack);
    let samples = [0, SECOND / 2, SECOND].map(|at_ns| sleeping(at_ns, &stack)).to_vec();
    SampledThread {
        tid: Tid(tid),
        name: name.to_owned(),
        samples,
        open_call: None,
        open_call_age_ns: None,
        has_returned: None,
    }
}

/// A thread that spins for a second.
fn spinning(tid: u32, name: &str, mut stack: ThreadStack) -> SampledThread {
    stack.is_torn = true;
    let mut thread = asleep(tid, name, stack);
    for sample in &mut thread.samples {
        (sample.state, sample.system_call, sample.wait_channel) = ('R', None, None);
        sample.cpu_ns += sample.at_ns / 100 * 99;
    }
    thread
}

/// A rank of a job on eight GPUs, with two threads of its own and two of libcuda.
fn rank(number: u32) -> SampledProcess {
    let tgid = 28 + number;
    let reduce = in_call(Api::Nccl, "ncclAllReduce", "libnccl.so.2", program(90));
    let mut main = if number == 3 {
        let sync = in_call(Api::Runtime, "cudaStreamSynchronize", "libcudart.so.12", program(88));
        asleep(tgid, "python", sync)
    } else {
        spinning(tgid, "python", reduce)
    };
    if number == 3 {
        main.open_call = open_calls().into_iter().find(|call| call.name == "cudaStreamSynchronize");
        main.open_call_age_ns = Some(12 * SECOND);
    }
    let start = || vec![native("start_thread", "libc.so.6"), native("clone3", "libc.so.6")];
    let own = [vec![native("__poll", "libc.so.6"), native("", "libcuda.so.1")], start()].concat();
    let of_libcuda = GpuCall { api: Api::Driver, function: "libcuda.so.1".to_owned(), frame: 1, slot: 1 };
    let own = ThreadStack { frames: own, gpu_call: Some(of_libcuda), ..ThreadStack::default() };
    SampledProcess {
        tgid: Tgid(tgid),
        name: "python".to_owned(),
        command: format!("python train.py --config configs/large.yaml --local_rank={number}"),
        container: Some("ml/train-0/trainer".to_owned()),
        age_ns: Some(7200 * SECOND),
        rank: Some(Rank { variable: "RANK".to_owned(), number }),
        gpus: vec![number],
        threads: vec![
            main,
            asleep(tgid + 1000, "cuda-EvtHandlr", own.clone()),
            asleep(tgid + 1001, "cuda-EvtHandlr", own),
            asleep(tgid + 1002, "pin_memory", ThreadStack { frames: program(40), ..ThreadStack::default() }),
        ],
        streams: vec![LastOperation {
            stream: 0x55d0_2000,
            operation: "ncclDevKernel_AllReduce".to_owned(),
            age_ns: 12 * SECOND + u64::from(number) * 1_000_000,
        }],
        ..SampledProcess::default()
    }
}

/// A process with threads that are hard to read, and with hostile names.
fn server() -> SampledProcess {
    let worker = |outside: Frame| in_call(Api::Driver, "cuMemAlloc_v2", "libcuda.so.1", vec![outside]);
    let pool = (0..40).map(|i| asleep(900 + i, "worker", worker(native("Pool::grow()", "server"))));
    let mut blocked = asleep(800, "evil\x1b[2J\"", worker(native(&"x\x1b[31m\n".repeat(60), "e\nvil")));
    for sample in &mut blocked.samples {
        (sample.state, sample.system_call) = ('D', Some(16));
        sample.wait_channel = Some("rwsem_down\x07write".to_owned());
    }
    let mut moving = asleep(801, "launcher", worker(native("launch()", "server")));
    for (index, sample) in moving.samples.iter_mut().enumerate() {
        (sample.caller_state, sample.cpu_ns) = (index as u64, index as u64 * SECOND / 4);
    }
    let mut cut = asleep(802, "cut", worker(native("", "server")));
    let incomplete = Some("a function of server has no unwind table".to_owned());
    let stack = ThreadStack { incomplete, ..ThreadStack::clone(&cut.samples[0].stack) };
    cut.samples = vec![sleeping(SECOND, &Arc::new(stack))];
    cut.samples[0].system_call = Some(9999);
    let stream = |number: u64| LastOperation {
        stream: number,
        operation: "copy\x1b H2D".to_owned(),
        age_ns: number * 30_000_000,
    };
    SampledProcess {
        tgid: Tgid(700),
        name: "server".to_owned(),
        command: format!("/srv/server --evil=\x1b[2J {}", "--long ".repeat(40)),
        gpus: vec![0, 9],
        threads: pool.chain([blocked, moving, cut]).collect(),
        exited_threads: 1,
        python_problem: Some("Python 3.8 is not supported\n".to_owned()),
        streams: (1..=12).map(stream).collect(),
        ..SampledProcess::default()
    }
}

pub(crate) fn sampled() -> Vec<SampledProcess> {
    let unread = SampledProcess {
        tgid: Tgid(701),
        name: "hidden\n".to_owned(),
        problem: Some("its memory cannot be read: it needs CAP_SYS_PTRACE".to_owned()),
        ..SampledProcess::default()
    };
    (0..8).map(rank).chain([server(), unread]).collect()
}

/// Eight GPUs that are busy, and one that reported errors.
pub(crate) fn states() -> GpuStates {
    let gpu = |gpu: u8| IndexedGpu {
        gpu,
        state: GpuState { busy_percent: Some(if gpu == 3 { 0 } else { 100 }), ..GpuState::default() },
    };
    let user = GpuUser {
        gpu: 3,
        pid: Tgid(31),
        name: "python".to_owned(),
        memory_bytes: None,
        seen_bytes: None,
        busy_percent: Some([0; 4]),
    };
    let errors = |gpu, xid, count| GpuErrors { gpu, xid, count };
    GpuStates {
        is_up: Some(true),
        gpus: (0..8).map(gpu).collect(),
        users: vec![user],
        xids: vec![errors(3, 31, 2), errors(5, 79, 1), errors(9, u64::MAX, 1)],
    }
}

/// Errors of the last hour: two of rank 3, one of the GPU of the server, and one of a process that has exited.
pub(crate) fn recent_xids() -> RecentXids {
    let xid = |number, gpu: u8, pid: Option<u32>, seconds| RecentXid {
        number,
        gpu: Some(gpu.into()),
        pci: PciAddress { domain: 0, bus: 16 + gpu, device: 0, function: 0 },
        pid: pid.map(Tgid),
        age_ns: seconds * SECOND,
    };
    RecentXids {
        xids: vec![
            xid(31, 3, Some(31), 3000),
            xid(31, 3, Some(31), 240),
            xid(94, 0, None, 12),
            xid(43, 1, Some(99), 5),
        ],
        problem: Some("the newest messages of the kernel log were not read\n".to_owned()),
    }
}

/// Makes processes that no program could be.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    /// Few numbers, some of them extreme.
    fn number(&mut self) -> u64 {
        [0, 1, 2, SECOND / 2, SECOND, u64::MAX - 1, u64::MAX][self.below(7) as usize]
    }

    fn text(&mut self) -> String {
        ["", "a", "\x1b[2J", "x\ny", "libc.so.6", "cuInit", "ncclAllReduce"][self.below(7) as usize]
            .to_owned()
    }

    fn maybe<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        (self.below(2) == 0).then(|| make(self))
    }

    fn stack(&mut self) -> ThreadStack {
        let frame = |random: &mut Self| Frame {
            address: random.number(),
            function: random.maybe(Self::text),
            offset: random.number(),
            module: random.maybe(Self::text),
            file: random.maybe(Self::text),
            line: random.maybe(|random| random.below(3) as u32),
            inlined: false,
            python: random.below(2) == 0,
        };
        let call = |random: &mut Self| GpuCall {
            api: Api::ALL[random.below(Api::ALL.len() as u64) as usize],
            function: random.text(),
            frame: random.number() as usize,
            slot: random.number(),
        };
        ThreadStack {
            frames: (0..self.below(4)).map(|_| frame(self)).collect(),
            incomplete: self.maybe(Self::text),
            is_torn: self.below(2) == 0,
            gpu_call: self.maybe(call),
        }
    }

    fn thread(&mut self) -> SampledThread {
        let sample = |random: &mut Self| ThreadSample {
            at_ns: random.number(),
            state: ['R', 'S', 'D', 'T', 'Z', '\0', '\x1b'][random.below(7) as usize],
            system_call: random.maybe(|random| random.number() as u32),
            wait_channel: random.maybe(Self::text),
            cpu_ns: random.number(),
            waits: random.number(),
            stack: Arc::new(random.stack()),
            caller_state: random.number(),
        };
        let calls = open_calls();
        SampledThread {
            tid: Tid(self.below(5) as u32),
            name: self.text(),
            samples: (0..self.below(4)).map(|_| sample(self)).collect(),
            open_call: self.maybe(|random| calls[random.below(calls.len() as u64) as usize].clone()),
            open_call_age_ns: self.maybe(Self::number),
            has_returned: None,
        }
    }

    pub(crate) fn process(&mut self) -> SampledProcess {
        let rank = |random: &mut Self| Rank { variable: random.text(), number: random.below(3) as u32 };
        let stream = |random: &mut Self| LastOperation {
            stream: random.number(),
            operation: random.text(),
            age_ns: random.number(),
        };
        SampledProcess {
            tgid: Tgid(self.below(5) as u32),
            name: self.text(),
            command: self.text(),
            container: self.maybe(Self::text),
            parent: self.maybe(|random| Tgid(random.below(5) as u32)),
            session: self.maybe(|random| random.below(2) as u32),
            age_ns: self.maybe(Self::number),
            rank: self.maybe(rank),
            gpus: vec![self.number() as u32],
            threads: (0..self.below(6)).map(|_| self.thread()).collect(),
            exited_threads: self.below(3),
            python_problem: self.maybe(Self::text),
            problem: self.maybe(Self::text),
            streams: (0..self.below(12)).map(|_| stream(self)).collect(),
        }
    }
}
