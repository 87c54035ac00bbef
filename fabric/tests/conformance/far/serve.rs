//! The other host's end: it connects to the listener that it is told of, and does what it is told.

use std::collections::{HashMap, VecDeque};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use onesided_fabric::verbs::{self, ConnectOptions};
use onesided_fabric::{BufferPool, CompletionQueue, Endpoint, RegionId};
use parking_lot::Mutex;

use super::Ask;
use super::wire::{Arrived, Message};

/// HOST:PORT to listen at, for the other host's cases.
const LISTEN: &str = "ONESIDED_FAR_LISTEN";

/// Clients of the other host's cases, until it is killed.
#[test]
fn serve() {
    let Ok(listen) = std::env::var(LISTEN) else {
        eprintln!("DID NOT RUN: needs {LISTEN}, as tools/guests/test verbs_conformance_two");
        return;
    };
    let listener = TcpListener::bind(listen).expect("the address");
    let clients = Arc::<Clients>::default();
    for stream in listener.incoming() {
        let (stream, clients) = (stream.expect("a stream"), Arc::clone(&clients));
        std::thread::spawn(move || clients.answer_all(stream));
    }
}

/// The connections, by number; what the other host has dropped is gone.
#[derive(Default)]
struct Clients {
    endpoints: Mutex<HashMap<u64, Arc<dyn Endpoint>>>,
    queues: Mutex<HashMap<u64, Arc<dyn CompletionQueue>>>,
    last: Mutex<u64>,
    pool: BufferPool,
}

impl Clients {
    fn answer_all(&self, mut stream: TcpStream) {
        stream.set_nodelay(true).expect("a socket");
        while let Some(question) = Arrived::receive(&mut stream) {
            self.answer(question).send(&mut stream);
        }
    }

    fn endpoint(&self, number: u64) -> Arc<dyn Endpoint> {
        Arc::clone(&self.endpoints.lock()[&number])
    }

    fn queue(&self, number: u64) -> Arc<dyn CompletionQueue> {
        Arc::clone(&self.queues.lock()[&number])
    }

    fn answer(&self, mut question: Arrived) -> Message {
        let (ask, number) = (Ask::ALL[question.number() as usize], question.number());
        let answer = Message::default();
        match ask {
            Ask::Connect => return self.connect(&mut question),
            Ask::Post => {
                let count = question.number();
                let requests = (0..count).map(|_| question.request(&self.pool));
                let mut chain: VecDeque<_> = requests.collect();
                let outcome = self.endpoint(number).post(&mut chain);
                return answer.posted(&outcome, chain.len());
            }
            Ask::Attach => {
                let region = RegionId(question.number() as u32);
                return answer.attached(&self.endpoint(number).attach(region, &[]));
            }
            Ask::Poll => {
                let mut completions = Vec::new();
                let count = self.queue(number).poll(&mut completions, question.number() as usize);
                assert_eq!(count, completions.len());
                return completions.iter().fold(answer.number(count as u64), Message::completion);
            }
            Ask::Wait => {
                let timeout = Duration::from_millis(question.number());
                return answer.wait(self.queue(number).wait(timeout));
            }
            Ask::IsClosed => return answer.number(self.endpoint(number).is_closed().into()),
            Ask::Wake => self.queue(number).wake(),
            Ask::Close => self.endpoint(number).close(),
            Ask::DropEndpoint => drop(self.endpoints.lock().remove(&number)),
            Ask::DropQueue => drop(self.queues.lock().remove(&number)),
        }
        answer
    }

    fn connect(&self, question: &mut Arrived) -> Message {
        let blob = question.bytes().to_vec();
        let (context, timeout) = (question.number(), Duration::from_secs(30));
        let options = ConnectOptions::default();
        let connected = verbs::connect(&blob, &[7; 32], context, timeout, &options);
        let connected = connected.expect("connects to the other host");
        let number = {
            let mut last = self.last.lock();
            *last += 1;
            *last
        };
        let caps = connected.endpoint.caps();
        self.endpoints.lock().insert(number, connected.endpoint);
        self.queues.lock().insert(number, connected.cq);
        Message::default().number(number).caps(caps)
    }
}
