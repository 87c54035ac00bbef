//! Frames of the control connection: a 4-byte length, then the message.

use std::io;
use std::time::Duration;

use onesided_protocol::control::ToClient;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// How long a peer may take to take an answer, and to finish a frame it has begun.
const PATIENCE: Duration = Duration::from_secs(5);
/// What is read from a connection that is being closed, so that the last answer is not discarded
/// with it.
const DRAIN_BYTES: usize = 64 << 10;
const DRAIN_TIME: Duration = Duration::from_millis(200);

/// A frame could not be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum FrameError {
    /// The peer closed the connection between frames.
    #[error("the peer has closed the connection")]
    Closed,
    /// A length over the limit.
    #[error("a control frame of {0} bytes was announced; the limit is {1}")]
    TooLong(u32, usize),
    /// A frame that was begun and not finished in time.
    #[error("a control frame was begun and not finished within {} s", PATIENCE.as_secs())]
    Stalled,
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Broken(#[from] io::Error),
}

/// Reads one frame of at most `max_bytes` into `buffer`. Waits for its first byte as long as it
/// takes: leases bound that.
pub(super) async fn read<'b>(
    stream: &mut TcpStream,
    buffer: &'b mut Vec<u8>,
    max_bytes: usize,
) -> Result<&'b [u8], FrameError> {
    let mut length = [0; 4];
    match stream.read(&mut length[..1]).await {
        Ok(0) => return Err(FrameError::Closed),
        Ok(_) => {}
        Err(error) => return Err(error.into()),
    }
    let rest = async {
        stream.read_exact(&mut length[1..]).await?;
        let announced = u32::from_le_bytes(length);
        if announced as usize > max_bytes {
            return Err(FrameError::TooLong(announced, max_bytes));
        }
        buffer.resize(announced as usize, 0);
        stream.read_exact(buffer).await?;
        Ok(())
    };
    tokio::time::timeout(PATIENCE, rest).await.map_err(|_| FrameError::Stalled)??;
    Ok(buffer)
}

/// The bytes of a frame.
pub(super) fn encode(message: &ToClient) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    message.encode(&mut bytes);
    // Counts are bounded where they are made; every message is far below 4 GiB.
    let len = (bytes.len() - 4) as u32;
    bytes[..4].copy_from_slice(&len.to_le_bytes());
    bytes
}

/// Writes one frame.
pub(super) async fn write(stream: &mut TcpStream, message: &ToClient) -> io::Result<()> {
    let bytes = encode(message);
    tokio::time::timeout(PATIENCE, stream.write_all(&bytes))
        .await
        .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "the peer takes no answer"))?
}

/// Writes a last frame and closes, so that the peer can still read it.
pub(super) async fn write_last(mut stream: TcpStream, message: &ToClient) {
    if write(&mut stream, message).await.is_err() || stream.shutdown().await.is_err() {
        return;
    }
    let drain = async {
        let mut bytes = [0; 1024];
        let mut total = 0;
        while total < DRAIN_BYTES {
            match stream.read(&mut bytes).await {
                Ok(n) if n > 0 => total += n,
                _ => return,
            }
        }
    };
    // The time over is as good an end as the peer's.
    let _time_over = tokio::time::timeout(DRAIN_TIME, drain).await;
}
