//! What a session can ask for on its control connection.

use std::sync::Arc;

use onesided_protocol::control::{TableCounts, TableInfo, TableOptions, ToClient, ToServer};
use onesided_protocol::rpc::{ErrorCode, RpcError};
use tokio::task::JoinError;

use crate::server::Core;
use crate::session::{Control, Session};
use crate::stats::Ended;
use crate::tenant::Tenant;

/// A control connection after its hello.
pub(super) struct Connection {
    pub(super) core: Arc<Core>,
    pub(super) session: Arc<Session>,
    pub(super) control: Control,
}

impl Connection {
    /// Answers one message.
    pub(super) async fn answer(&self, message: ToServer) -> ToClient {
        let core = &self.core;
        let engine = &self.session.tenant.engine;
        let beat = match &message {
            ToServer::Heartbeat(beat) => Some(*beat),
            _ => None,
        };
        if core.sessions.beat(&self.session, beat) {
            let tenant = Arc::clone(&self.session.tenant);
            // Giving memory back may take a while. If it fails the log has it: no client can help.
            let _done = self.blocking(move |core| core.sessions.reclaim(&tenant)).await;
        }
        match message {
            ToServer::Hello(_) => {
                let text = "a second hello on one connection: open another connection";
                ToClient::Failed(RpcError::new(ErrorCode::Malformed, text))
            }
            ToServer::Heartbeat(_) => {
                let (epoch, retired) = self.session.retired();
                let catalog_epoch = engine.catalog_epoch();
                ToClient::Alive { clock_ns: engine.clock_ns(), catalog_epoch, epoch, retired }
            }
            ToServer::Accessed { table, hashes } => {
                // A session tells of tables that it may know, and of no others.
                if self.session.knows_table(table) {
                    core.stats.accesses.add(hashes.len() as u64);
                    engine.note_accesses(table, &hashes);
                }
                ToClient::Done
            }
            ToServer::Counted { table, mut counts } => {
                self.note_counts(table, &mut counts);
                ToClient::Done
            }
            ToServer::Ticket => ToClient::Ticket(core.sessions.ticket(&self.session)),
            ToServer::Stats => ToClient::Stats(core.stats(&engine.memory_status())),
            ToServer::Goodbye => {
                let session = Arc::clone(&self.session);
                // Reclaiming memory may take a while.
                let end = move |core: &Core| core.sessions.end(&session, Ended::Goodbye);
                answer(self.blocking(end).await, |_| ToClient::Done)
            }
            ToServer::ListTables => ToClient::Tables(engine.list_tables()),
            ToServer::OpenTable { name } => answer(
                self.know(move |tenant| tenant.engine.open_table(&name)).await,
                ToClient::Table,
            ),
            ToServer::CreateTable { name, options } => self.create(name, options).await,
            ToServer::AlterTable { name, options } => {
                let altered = self.know(move |tenant| {
                    tenant.may_manage()?;
                    tracing::info!(table = name, ?tenant, ?options, "altering a table");
                    tenant.engine.alter_table(&name, options)
                });
                answer(altered.await, ToClient::Table)
            }
            ToServer::DropTable { name } => self.drop_table(name).await,
        }
    }

    /// The client tells what it did with a table.
    fn note_counts(&self, table: u32, counts: &mut TableCounts) {
        let core = &self.core;
        let tenant = &self.session.tenant;
        // A session tells of tables that it may know, and of no others.
        let known = tenant.engine.table(table).filter(|_| self.session.knows_table(table));
        let Some(table) = known else { return };
        core.stats.reports.add(1);
        if self.session.note_counts(counts) {
            core.stats.reports_cut.add(1);
        }
        let label = core.metrics.labels.number(tenant.name(), table.name());
        core.metrics.reported.add(label, counts);
    }

    async fn create(&self, name: String, options: TableOptions) -> ToClient {
        let core = Arc::clone(&self.core);
        let created = self.know(move |tenant| {
            tenant.may_manage()?;
            core.check_updates(options)?;
            tracing::info!(table = name, ?tenant, ?options, "creating a table");
            tenant.engine.create_table(&name, options)
        });
        answer(created.await, ToClient::Table)
    }

    /// Gets what there is to know of a table of its tenant, and notes that the session knows it
    /// from now on.
    async fn know(
        &self,
        ask: impl FnOnce(&Tenant) -> Result<TableInfo, RpcError> + Send + 'static,
    ) -> Result<TableInfo, RpcError> {
        let session = Arc::clone(&self.session);
        self.blocking(move |core| {
            // Not while a table is dropped: see `drop_table`.
            let _no_drop = core.dropping.read();
            let info = ask(&session.tenant).inspect(|info| session.note_table(info.id))?;
            Ok(TableInfo { updates_over: core.updates_over(), ..info })
        })
        .await
        .flatten()
    }

    async fn drop_table(&self, name: String) -> ToClient {
        let session = Arc::clone(&self.session);
        let dropped = self.blocking(move |core| {
            let tenant = &session.tenant;
            tenant.may_manage()?;
            // While it is held nobody opens a table, so that only these sessions can know it.
            let _no_opens = core.dropping.write();
            let holders = core.sessions.forget_table(tenant, tenant.engine.open_table(&name)?.id);
            tracing::info!(table = name, ?tenant, holders = holders.len(), "dropping a table");
            tenant.engine.drop_table(&name, holders)?;
            core.sessions.reclaim(tenant);
            Ok(())
        });
        answer(dropped.await.flatten(), |()| ToClient::Done)
    }

    /// Runs what may take longer than other connections should wait.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Core) -> T + Send + 'static,
    ) -> Result<T, RpcError> {
        let core = Arc::clone(&self.core);
        tokio::task::spawn_blocking(move || work(&core)).await.map_err(|error| not_run(&error))
    }
}

/// Why work has no result. What the runtime cancels has not begun.
fn not_run(error: &JoinError) -> RpcError {
    if error.is_cancelled() {
        let text = "the server is shutting down: nothing was done; try again elsewhere";
        return RpcError::new(ErrorCode::ShuttingDown, text);
    }
    let text = "the server failed in the middle of it; its log says more";
    RpcError::new(ErrorCode::OutcomeUnknown, text)
}

fn answer<T>(result: Result<T, RpcError>, then: impl FnOnce(T) -> ToClient) -> ToClient {
    result.map_or_else(ToClient::Failed, then)
}
