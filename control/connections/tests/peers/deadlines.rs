//! How long a peer may keep its connection waiting.

use std::time::Duration;

use spillway_connections::{Deadlines, HEAD_BYTES_MAX};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{sleep, timeout};

use crate::server::{
    ENDED, GIVEN_UP, MANY, NEVER, SLOW, SLOW_CHUNKS, ask, connect, is_served, over_tcp, start,
    until_closed,
};

const SHORT: Duration = Duration::from_millis(200);
const HEAD: Deadlines = Deadlines { head: SHORT, ..NEVER };
const STALL: Deadlines = Deadlines { stall: SHORT, ..NEVER };

#[tokio::test]
async fn half_a_head_is_not_waited_for() {
    let address = over_tcp(MANY, HEAD).await;
    let mut silent = connect(address).await;
    assert_eq!(until_closed(&mut silent).await, "");
    let mut half = connect(address).await;
    half.write_all(b"GET / HTTP/1.1\r\nHost: he").await.unwrap();
    assert_eq!(until_closed(&mut half).await, "");
    // Half a head, and then a byte now and then.
    let (mut read, mut write) = connect(address).await.into_split();
    let drips = tokio::spawn(async move {
        write.write_all(b"GET / HTTP/1.1\r\nHost: ").await.unwrap();
        while write.write_all(b"e").await.is_ok() {
            sleep(SHORT / 8).await;
        }
    });
    assert_eq!(until_closed(&mut read).await, "");
    drips.await.unwrap();
}

#[tokio::test]
async fn an_idle_connection_is_not_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    // Longer than the machine may keep this test from its next request.
    start(UnixListener::bind(&path).unwrap(), MANY, Deadlines { head: SHORT * 10, ..NEVER });
    let mut stream = UnixStream::connect(&path).await.unwrap();
    for _ in 0..3 {
        assert!(is_served(&mut stream, "/").await, "it stays between requests");
    }
    until_closed(&mut stream).await;
}

#[tokio::test]
async fn a_body_that_stops_ends_its_request() {
    let address = over_tcp(MANY, STALL).await;
    let mut stream = connect(address).await;
    stream
        .write_all(b"POST /length HTTP/1.1\r\nHost: here\r\nContent-Length: 10\r\n\r\nabc")
        .await
        .unwrap();
    let answer = until_closed(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("request's body"), "{answer}");
}

#[tokio::test]
async fn a_body_that_is_slow_arrives() {
    // They take 4 s, longer than the deadline; a byte may be 3 s late.
    const BYTES: usize = 80;
    let address = over_tcp(MANY, Deadlines { stall: SHORT * 15, ..NEVER }).await;
    let mut stream = connect(address).await;
    let head = format!(
        "POST /length HTTP/1.1\r\nHost: here\r\nConnection: close\r\nContent-Length: {BYTES}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    for _ in 0..BYTES {
        sleep(SHORT / 4).await;
        stream.write_all(b"x").await.unwrap();
    }
    let answer = until_closed(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\n80"), "{answer}");
}

#[tokio::test]
async fn an_answer_that_nobody_takes_is_given_up() {
    let address = over_tcp(MANY, STALL).await;
    let mut stream = connect(address).await;
    ask(&mut stream, "GET /endless").await;
    timeout(GIVEN_UP, ENDED.notified()).await.expect("the answer waits for its peer");
}

#[tokio::test]
async fn an_answer_that_takes_long_is_not_cut() {
    // Long enough for the request to come in time on a busy machine.
    const DEADLINE: Duration = Duration::from_secs(1);
    assert!(SLOW > DEADLINE, "it is slower than every deadline");
    let address = over_tcp(MANY, Deadlines { head: DEADLINE, stall: DEADLINE }).await;
    let mut stream = connect(address).await;
    ask(&mut stream, "GET /slow").await;
    let answer = until_closed(&mut stream).await;
    assert_eq!(answer.matches("chunk\r\n").count(), SLOW_CHUNKS, "{answer}");
    assert!(answer.ends_with("\r\n0\r\n\r\n"), "{answer}");
}

#[tokio::test]
async fn a_head_has_a_most_length() {
    let address = over_tcp(MANY, NEVER).await;
    let mut stream = connect(address).await;
    let head = format!("GET / HTTP/1.1\r\nHost: {}", "x".repeat(HEAD_BYTES_MAX));
    stream.write_all(head.as_bytes()).await.unwrap();
    let answer = until_closed(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 431 ") && answer.contains("16 KiB"), "{answer}");
}

#[tokio::test]
async fn an_answer_without_a_body_is_sent_while_its_connection_stays() {
    let address = over_tcp(MANY, NEVER).await;
    let mut stream = connect(address).await;
    let request = "POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 0\r\n\r\n";
    for count in [1, 2, 3] {
        stream.write_all(request.repeat(count).as_bytes()).await.unwrap();
        let mut answers = Vec::new();
        let read = async {
            while String::from_utf8_lossy(&answers).matches("\r\n\r\n").count() < count {
                assert!(stream.read_buf(&mut answers).await.unwrap() > 0, "it is closed");
            }
        };
        timeout(GIVEN_UP, read).await.expect("the server keeps an answer");
        let answers = String::from_utf8(answers).unwrap();
        assert_eq!(answers.matches("HTTP/1.1 405 ").count(), count, "{answers}");
    }
    stream.write_all(b"nonsense\r\n\r\n").await.unwrap();
    let answer = until_closed(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("not valid"), "{answer}");
}
