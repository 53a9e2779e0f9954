//! Measures the cost of a scrape on a busy host: a thousand processes with twenty functions each.
//!
//!     cargo run --release -p gpuprobe-output --example scrape_cost

mod many_processes;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use gpuprobe_output::{Endpoint, Format, HttpSettings, Latest, OnRequest, encode};
use many_processes::many_processes;

type MainResult<T = ()> = Result<T, Box<dyn std::error::Error>>;

const ROUNDS: usize = 7;

fn main() -> MainResult {
    let snapshot = many_processes();
    for format in [Format::Prometheus, Format::OpenMetrics] {
        let (took, bytes) = best(|| encode(&snapshot, format).len());
        println!("encode {format:?}: {took:?} for {bytes} bytes");
    }
    let (took, bytes) = best(|| serde_json::to_vec(&snapshot).map_or(0, |json| json.len()));
    println!("encode JSON: {took:?} for {bytes} bytes");

    let latest = Latest::default();
    let settings = HttpSettings {
        address: SocketAddr::from(([127, 0, 0, 1], 0)),
        web_config: None,
        report_problem: |text| println!("{text}"),
    };
    let endpoint = Endpoint::open(settings)?;
    let address: SocketAddr = endpoint.url().trim_start_matches("http://").parse()?;
    let _server = endpoint.serve(latest.clone(), OnRequest::default())?;
    latest.publish(snapshot.clone(), Duration::from_secs(1));
    scrape("the first scrape", address)?;
    for _ in 0..3 {
        latest.publish(snapshot.clone(), Duration::from_secs(1));
        scrape("while the pages of a snapshot are made", address)?;
        std::thread::sleep(Duration::from_millis(500));
        scrape("the first scrape of a snapshot", address)?;
        scrape("the second scrape", address)?;
    }
    Ok(())
}

fn best(mut run: impl FnMut() -> usize) -> (Duration, usize) {
    let mut bytes = 0;
    let mut times: Vec<Duration> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            bytes = run();
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    (times[0], bytes)
}

/// Prints the time to the first and to the last byte of the answer, and the CPU time of the server.
fn scrape(what: &str, address: SocketAddr) -> MainResult {
    let (used, begun) = (server_cpu()?, Instant::now());
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")?;
    let mut buffer = vec![0; 1 << 20];
    let mut bytes = stream.read(&mut buffer)?;
    let first = begun.elapsed();
    loop {
        match stream.read(&mut buffer)? {
            0 => break,
            n => bytes += n,
        }
    }
    let last = begun.elapsed();
    let used = server_cpu()?.saturating_sub(used);
    println!(
        "{what}: {first:?} to the first byte, {last:?} to the last of {bytes}; CPU time of the server {used:?}"
    );
    Ok(())
}

/// The CPU time of the server thread.
fn server_cpu() -> MainResult<Duration> {
    for task in std::fs::read_dir("/proc/self/task")? {
        let task = task?.path();
        if std::fs::read_to_string(task.join("comm"))?.trim_end() == "http" {
            let used = std::fs::read_to_string(task.join("schedstat"))?;
            return Ok(Duration::from_nanos(used.split(' ').next().unwrap_or_default().parse()?));
        }
    }
    Err("there is no server thread".into())
}
