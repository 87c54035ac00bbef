//! The client.

use std::sync::Arc;
use std::time::{Duration, Instant};

use onesided_fabric::FabricKind;
use onesided_protocol::control::{FabricOffer, TableOptions, TableStatus, ToClient, ToServer};
use onesided_protocol::limits::TABLE_NAME_MAX_BYTES;
use tokio::sync::oneshot;

use crate::connect::establish;
use crate::control;
use crate::core::{Connection, Deadline, Shared};
use crate::error::Error;
use crate::link::Link;
use crate::options::{ClientBuilder, Options};
use crate::reactor;
use crate::registered::RegisteredBuffer;
use crate::rpc;
use crate::stats::{Counter, Stats};
use crate::table::Table;
use crate::url::Url;

/// The threads of a link end when the last client and table that use it are gone.
pub(crate) struct LinkGuard {
    link: Arc<Link>,
}

impl LinkGuard {
    pub(crate) fn fixed(connection: &Arc<Connection>) -> Result<Arc<Self>, Error> {
        let link = Link::new(None, Arc::clone(connection.shared()), Arc::clone(connection))?;
        Ok(Arc::new(Self { link }))
    }

    pub(crate) fn link(&self) -> &Arc<Link> {
        &self.link
    }
}

impl Drop for LinkGuard {
    fn drop(&mut self) {
        self.link.shut_down();
    }
}

/// A client of one server: one session, whatever the number of threads and tables. Cloning is
/// cheap and shares it. [`Client::close`] ends it, or the drop of the last clone and table.
#[derive(Clone)]
pub struct Client {
    pub(crate) guard: Arc<LinkGuard>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("link", &self.guard.link).finish()
    }
}

const WRONG_ANSWER: Error = Error::BadAnswer("the answer does not belong to the question");

impl Client {
    /// Connects to `onesided://HOST[:PORT]` with the default options.
    ///
    /// # Errors
    /// As [`ClientBuilder::connect`].
    pub async fn connect(url: impl Into<String>) -> Result<Self, Error> {
        Self::builder().url(url).connect().await
    }

    /// A builder, for options.
    #[must_use]
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// Connects, blocking.
    pub(crate) fn connect_now(url: &Url, options: Options) -> Result<Self, Error> {
        let shared = Shared::new(options);
        let first = establish(url, &shared, None)?;
        let connection = Arc::clone(&first.connection);
        let fabric = connection.caps().kind.to_string();
        tracing::info!(server = url.address(), fabric, "connected");
        let link = Link::new(Some(url.clone()), shared, connection)?;
        // From here on an error ends what was started.
        let guard = Arc::new(LinkGuard { link: Arc::clone(&link) });
        let failed = |source| Error::System { what: "a thread", source };
        control::start(Arc::clone(&link), first).map_err(failed)?;
        reactor::start(link).map_err(failed)?;
        Ok(Self { guard })
    }

    /// Ends the client, its clones and tables, and waits for the server to hear of it, 200 ms at
    /// most. A program that ends without this may leave a session behind that the server keeps
    /// until its lease is over.
    pub async fn close(self) {
        self.link().shut_down();
        let link = Arc::clone(self.link());
        let (over, heard) = oneshot::channel();
        let wait = move || {
            link.wait_for_end(control::GOODBYE);
            // Whoever waited may be gone.
            let _gone = over.send(());
        };
        // Without another thread there is no waiting; the goodbye is sent all the same.
        if std::thread::Builder::new().name("onesided-close".to_owned()).spawn(wait).is_ok() {
            let _over = heard.await;
        }
    }

    /// As [`Self::close`], blocking.
    pub(crate) fn close_now(self) {
        self.link().shut_down();
        self.link().wait_for_end(control::GOODBYE);
    }

    /// Opens a table.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`], [`Error::TooLarge`], [`Error::ConnectionLost`], [`Error::TimedOut`].
    pub async fn table(&self, name: &str) -> Result<Table, Error> {
        check_name(name)?;
        let table = Table::new(name, &self.guard);
        table.handle.open(self.deadline("open table")).await?;
        Ok(table)
    }

    /// All tables of the server.
    ///
    /// # Errors
    /// [`Error::ConnectionLost`], [`Error::TimedOut`].
    pub async fn tables(&self) -> Result<Vec<TableStatus>, Error> {
        match self.ask(ToServer::ListTables, "list tables").await? {
            ToClient::Tables(tables) => Ok(tables),
            _ => Err(WRONG_ANSWER),
        }
    }

    /// Makes a table and opens it.
    ///
    /// # Errors
    /// [`Error::TableExists`], [`Error::BadOption`], [`Error::TooLarge`], [`Error::Unauthorized`];
    /// [`Error::ConnectionLost`] and [`Error::TimedOut`] if nothing was asked yet, and
    /// [`Error::OutcomeUnknown`] if the server was, and its answer did not come.
    pub async fn create_table(&self, name: &str, options: TableOptions) -> Result<Table, Error> {
        check_name(name)?;
        let message = ToServer::CreateTable { name: name.to_owned(), options };
        match self.ask(message, "create table").await? {
            ToClient::Table(_) => self.table(name).await,
            _ => Err(WRONG_ANSWER),
        }
    }

    /// Sets all options of a table.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`], [`Error::BadOption`], and as [`Self::create_table`].
    pub async fn alter_table(&self, name: &str, options: TableOptions) -> Result<(), Error> {
        check_name(name)?;
        let message = ToServer::AlterTable { name: name.to_owned(), options };
        match self.ask(message, "alter table").await? {
            ToClient::Table(_) => Ok(()),
            _ => Err(WRONG_ANSWER),
        }
    }

    /// Removes a table and all that is in it.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`], and as [`Self::create_table`].
    pub async fn drop_table(&self, name: &str) -> Result<(), Error> {
        check_name(name)?;
        let message = ToServer::DropTable { name: name.to_owned() };
        match self.ask(message, "drop table").await? {
            ToClient::Done => Ok(()),
            _ => Err(WRONG_ANSWER),
        }
    }

    /// The server's counters, by name.
    ///
    /// # Errors
    /// [`Error::ConnectionLost`], [`Error::TimedOut`].
    pub async fn server_stats(&self) -> Result<Vec<(String, u64)>, Error> {
        match self.ask(ToServer::Stats, "stats").await? {
            ToClient::Stats(stats) => Ok(stats),
            _ => Err(WRONG_ANSWER),
        }
    }

    /// A buffer for large values, empty, with room for `capacity_bytes` at least, and registered
    /// with the device, if the fabric in use has one: set-up instead of the first use pays for
    /// that, and hears if the limit on locked memory is too low.
    ///
    /// # Errors
    /// [`Error::Attach`] when it cannot be registered; [`Error::ConnectionLost`],
    /// [`Error::TimedOut`].
    pub async fn register(&self, capacity_bytes: usize) -> Result<RegisteredBuffer, Error> {
        let connection = self.link().connection(self.deadline("register")).await?;
        let buffer = self.link().shared().lendable(capacity_bytes);
        let registered = connection.endpoint().register(&buffer);
        registered.map_err(|error| connection.attach_error(error))?;
        Ok(RegisteredBuffer { buffer })
    }

    /// Time of one round trip on the data path.
    ///
    /// # Errors
    /// [`Error::ConnectionLost`], [`Error::TimedOut`].
    pub async fn ping(&self) -> Result<Duration, Error> {
        self.link().shared().stats.add(Counter::RpcPings, 1);
        let start = Instant::now();
        rpc::ping(self.link(), self.deadline("ping")).await?;
        Ok(start.elapsed())
    }

    /// This client's counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let link = self.link();
        Stats::of(link.shared(), link.fabric(), link.current().as_deref())
    }

    /// The fabric in use.
    #[must_use]
    pub fn fabric(&self) -> FabricKind {
        self.link().fabric()
    }

    /// The fabrics that the server offers, in its order of preference, each with what its backend
    /// needs to reach it.
    #[must_use]
    pub fn offers(&self) -> Vec<FabricOffer> {
        let current = self.link().current();
        current.map_or_else(Vec::new, |connection| connection.welcome().fabrics.clone())
    }

    pub(crate) fn link(&self) -> &Arc<Link> {
        &self.guard.link
    }

    async fn ask(&self, message: ToServer, what: &'static str) -> Result<ToClient, Error> {
        Ok(self.link().ask(message, self.deadline(what)).await?.0)
    }

    fn deadline(&self, what: &'static str) -> Deadline {
        Deadline::after(what, self.link().shared().options.operation_timeout)
    }
}

/// A longer name cannot even be sent: the server would take the message for nonsense.
fn check_name(name: &str) -> Result<(), Error> {
    if name.len() <= TABLE_NAME_MAX_BYTES {
        return Ok(());
    }
    let len = name.len();
    Err(Error::TooLarge(format!("a table's name of {len} bytes; at most {TABLE_NAME_MAX_BYTES}")))
}
