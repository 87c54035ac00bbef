//! Tenants: each has an engine of its own, hence tables, regions and a catalog that no other
//! tenant's session can name, and all share one budget of memory.

use std::sync::Arc;

use arc_swap::ArcSwap;
use onesided_fabric::{Memory, Rights};
use onesided_protocol::control::{FabricName, UpdateMode};
use onesided_protocol::rpc::{ErrorCode, RpcError};

use crate::clock::ServerClock;
use crate::config::{HugePages, ServerConfig, TableSpec, TenantSpec, Token};
use crate::engine::status::LOOKS_MAX;
use crate::engine::{
    Budget, Engine, EngineConfig, EngineError, MakeMemory, MemoryStatus, RegionMap,
};
use crate::metrics::snapshot::TenantTable;
use crate::server::StartError;

/// Segments of a full memory, at least.
const SEGMENTS_MIN: usize = 64;
/// And the shortest one.
const SEGMENT_MIN_BYTES: usize = 32 << 10;

/// Who is a tenant's client, and what such a client may do: it can change at run time.
struct Access {
    token: Option<Token>,
    manage_tables: bool,
}

impl Access {
    fn of(spec: &TenantSpec) -> Self {
        Self { token: spec.token.clone(), manage_tables: spec.manage_tables }
    }
}

/// One tenant of a running server.
pub(crate) struct Tenant {
    /// Position among all, from 0, the default one's; over RDMA that of its protection domain.
    pub(crate) number: u32,
    name: String,
    access: ArcSwap<Access>,
    pub(crate) engine: Arc<Engine>,
}

impl std::fmt::Debug for Tenant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl Tenant {
    /// One for tests, with everything allowed.
    #[cfg(test)]
    pub(crate) fn alone(engine: Arc<Engine>) -> Arc<Self> {
        Arc::new(Self::new(0, &TenantSpec::new(crate::config::DEFAULT_TENANT), engine))
    }

    fn new(number: u32, spec: &TenantSpec, engine: Arc<Engine>) -> Self {
        let access = ArcSwap::from_pointee(Access::of(spec));
        Self { number, name: spec.name.clone(), access, engine }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether its sessions may make, alter and drop tables.
    ///
    /// # Errors
    /// `Unauthorized`, if not.
    pub(crate) fn may_manage(&self) -> Result<(), RpcError> {
        if self.access.load().manage_tables {
            return Ok(());
        }
        let text = format!(
            "clients of tenant `{}` may not make, alter or drop tables: list them in the server's \
             `tables`, or set manage_tables = true for the tenant",
            self.name()
        );
        Err(RpcError::new(ErrorCode::Unauthorized, text))
    }
}

/// All tenants of a server.
pub(crate) struct Tenants {
    /// By number.
    all: Vec<Arc<Tenant>>,
    budget: Arc<Budget>,
}

impl Tenants {
    /// Makes their engines and the tables of the configuration.
    pub(crate) fn start(
        config: &ServerConfig,
        clock: &Arc<ServerClock>,
    ) -> Result<Self, StartError> {
        let budget = Budget::new(config.memory_bytes);
        let seed = config.seed.unwrap_or_else(rand::random);
        let make = |(number, spec): (u32, TenantSpec)| {
            let engine = make_engine(config, &spec, seed, number, &budget, clock)?;
            Ok(Arc::new(Tenant::new(number, &spec, engine)))
        };
        let all = (0..).zip(config.all_tenants()).map(make);
        let all: Vec<_> = all.collect::<Result<_, EngineError>>()?;
        let tenants = Self { all, budget };
        // Those first that others leave memory to.
        let is_rpc = |table: &&TableSpec| table.options.update == UpdateMode::Rpc;
        let (rpc, cas): (Vec<_>, Vec<_>) = config.tables.iter().partition(is_rpc);
        for table in cas.into_iter().chain(rpc) {
            let tenant = tenants.named(&table.tenant).unwrap_or_else(|| tenants.default());
            tenant.engine.create_table(&table.name, table.options).map_err(|error| {
                StartError::Table { name: table.to_string(), reason: error.to_string() }
            })?;
        }
        Ok(tenants)
    }

    /// Whose client the token's owner is.
    ///
    /// # Errors
    /// `Unauthorized`: nobody's.
    pub(crate) fn of_token(&self, token: &str) -> Result<&Arc<Tenant>, RpcError> {
        // All are compared, so that the time does not tell whose token it nearly was.
        let is =
            |tenant: &Tenant| tenant.access.load().token.as_ref().is_some_and(|own| own.is(token));
        let known = self.all.iter().fold(None, |known, tenant| {
            let is = is(tenant);
            known.or(is.then_some(tenant))
        });
        // One tenant without a token lets everybody in; among several, a token means somebody.
        let open = self.default().access.load().token.is_none();
        if open && (token.is_empty() || self.all.len() == 1) {
            return Ok(self.default());
        }
        known.ok_or_else(|| {
            let text = match token.is_empty() {
                true => "this server wants a token: give the client one",
                false => "the token is wrong: give the client the one that the server was given",
            };
            RpcError::new(ErrorCode::Unauthorized, text)
        })
    }

    /// Takes over tokens and rights of the tenants that there are.
    pub(crate) fn reload(&self, config: &ServerConfig) {
        for spec in config.all_tenants() {
            if let Some(tenant) = self.named(&spec.name) {
                tenant.access.store(Arc::new(Access::of(&spec)));
            }
        }
    }

    pub(crate) fn named(&self, name: &str) -> Option<&Arc<Tenant>> {
        self.all.iter().find(|tenant| tenant.name() == name)
    }

    pub(crate) fn default(&self) -> &Arc<Tenant> {
        &self.all[0]
    }

    pub(crate) fn names(&self) -> Vec<&str> {
        self.all.iter().map(|tenant| tenant.name()).collect()
    }

    pub(crate) fn engines(&self) -> impl Iterator<Item = &Arc<Engine>> {
        self.all.iter().map(|tenant| &tenant.engine)
    }

    /// All tables of all tenants.
    pub(crate) fn tables(&self) -> Vec<TenantTable> {
        let of = |tenant: &Arc<Tenant>| {
            let name = tenant.name().to_owned();
            let tables = tenant.engine.tables_now().into_iter();
            tables.map(move |(status, index)| TenantTable { tenant: name.clone(), status, index })
        };
        self.all.iter().flat_map(of).collect()
    }

    /// Regions of all tenants from the `from`th on, at most `limit`, each with its tenant's name;
    /// and how many there are.
    pub(crate) fn regions(&self, from: usize, limit: usize) -> (Vec<(String, RegionMap)>, usize) {
        let (mut page, mut total) = (Vec::new(), 0);
        for tenant in &self.all {
            let left = limit - page.len();
            let regions = tenant.engine.map(from.saturating_sub(total), left).into_iter();
            page.extend(regions.map(|region| (tenant.name().to_owned(), region)));
            total += tenant.engine.region_count();
        }
        (page, total)
    }

    /// Where the memory of all is.
    pub(crate) fn memory_status(&self) -> MemoryStatus {
        let look =
            || MemoryStatus::sum(self.engines().map(|engine| engine.memory_status()), &self.budget);
        let (mut taken_bytes, mut status) = (self.budget.taken_bytes(), look());
        // What an engine takes or gives back meanwhile would be counted twice, or not at all.
        for _ in 0..LOOKS_MAX {
            let now_bytes = self.budget.taken_bytes();
            if now_bytes == taken_bytes {
                break;
            }
            (taken_bytes, status) = (now_bytes, look());
        }
        status
    }
}

fn make_engine(
    config: &ServerConfig,
    tenant: &TenantSpec,
    seed: u64,
    number: u32,
    budget: &Arc<Budget>,
    clock: &Arc<ServerClock>,
) -> Result<Arc<Engine>, EngineError> {
    // Nobody maps writable what clients change over another fabric than shm. Where that is not
    // offered nobody maps any of it, but the maker of huge pages does.
    let updates = config.updates_over() == Some(FabricName::Shm);
    let make_memory: MakeMemory = Box::new(move |name, len_bytes, rights| {
        Memory::shared(name, len_bytes, if updates { rights } else { Rights::ReadOnly })
    });
    // The generator that is seeded with it mixes: neighbouring numbers have nothing in common.
    let seed = seed.wrapping_add(number.into());
    let engine_config = engine_config(config, tenant, seed);
    let clock: Arc<ServerClock> = Arc::clone(clock);
    Engine::within(Arc::clone(budget), engine_config, make_memory, clock)
}

/// Of one tenant's engine.
pub(crate) fn engine_config(config: &ServerConfig, tenant: &TenantSpec, seed: u64) -> EngineConfig {
    let memory_bytes = tenant.memory_bytes.unwrap_or(config.memory_bytes);
    EngineConfig {
        memory_bytes,
        region_bytes: config.region_bytes,
        segment_bytes: segment_bytes(memory_bytes, config.segment_bytes),
        value_max_bytes: config.value_max_bytes,
        seed,
        split_load_percent: config.split_load_percent,
        huge_pages: config.huge_pages == HugePages::Auto,
        cleaning: config.cleaning,
        cleaner_thread: true,
        shrink_after_s: config.shrink_after_s,
    }
}

/// Longest log segment: shorter where there is little memory, so that cleaning and evicting, which
/// need a few for themselves, have many to choose from.
fn segment_bytes(memory_bytes: usize, max_bytes: usize) -> usize {
    let fitting = (memory_bytes / SEGMENTS_MIN + 1).next_power_of_two() / 2;
    max_bytes.min(fitting.max(SEGMENT_MIN_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_short_where_memory_is() {
        let of = |memory_bytes| segment_bytes(memory_bytes, 1 << 20);
        let (mib, kib) = (1 << 20, 1 << 10);
        assert_eq!([1 << 40, 64 * mib, 63 * mib, 6 * mib].map(of), [mib, mib, mib / 2, 64 * kib]);
        assert_eq!((of(2 * mib), segment_bytes(1 << 30, 4096)), (32 * kib, 4096));
    }

    fn tenants(default: Option<&str>, others: &[(&str, &str)]) -> Tenants {
        let token = |text: &str| Some(Token::new(text).expect("a token"));
        let spec = |(name, text): &(&str, &str)| TenantSpec {
            token: token(text),
            ..TenantSpec::new(name)
        };
        let config = ServerConfig {
            token: default.and_then(token),
            tenants: others.iter().map(spec).collect(),
            ..ServerConfig::default()
        };
        assert_eq!(config.check(), Ok(()));
        Tenants::start(&config, &Arc::new(ServerClock::default())).expect("starts")
    }

    fn whose(tenants: &Tenants, token: &str) -> Option<String> {
        tenants.of_token(token).ok().map(|tenant| tenant.name().to_owned())
    }

    #[test]
    fn a_token_says_whose_client_it_is() {
        let known = |name: &str| Some(name.to_owned());
        let open = tenants(None, &[]);
        assert_eq!(whose(&open, ""), known("default"));
        assert_eq!(whose(&open, "anything"), known("default"));
        let one = tenants(Some("secret"), &[]);
        assert_eq!(whose(&one, "secret"), known("default"));
        assert_eq!(whose(&one, ""), None);
        assert_eq!(whose(&one, "secre"), None);
        let open = tenants(None, &[("blue", "b"), ("red", "r")]);
        assert_eq!(whose(&open, ""), known("default"));
        assert_eq!(whose(&open, "r"), known("red"));
        assert_eq!(whose(&open, "anything"), None, "a mistyped token is not no token");
        let three = tenants(Some("d"), &[("blue", "b"), ("red", "r")]);
        let found = ["d", "b", "r", "", "x"].map(|token| whose(&three, token));
        let expected = [known("default"), known("blue"), known("red"), None, None];
        assert_eq!(found, expected);
        assert_eq!(three.default().number, 0);
        assert_eq!(three.names(), ["default", "blue", "red"]);
    }

    #[test]
    fn engines_have_secrets_of_their_own_whatever_the_seed() {
        let config = ServerConfig {
            seed: Some(7),
            tenants: vec![TenantSpec {
                token: Some(Token::new("b").expect("a token")),
                ..TenantSpec::new("blue")
            }],
            tables: ["t", "t:tenant=blue"].map(|text| text.parse().expect(text)).to_vec(),
            ..ServerConfig::default()
        };
        let tenants = Tenants::start(&config, &Arc::new(ServerClock::default())).expect("starts");
        let infos: Vec<_> =
            tenants.engines().map(|engine| engine.open_table("t").expect("made")).collect();
        assert_ne!(infos[0].secret, infos[1].secret);
        assert_ne!(infos[0].hash_seed, infos[1].hash_seed);
        let status = tenants.memory_status();
        assert_eq!(status.limit_bytes, config.memory_bytes as u64);
        assert_eq!(status.log_bytes + status.meta_bytes + status.free_bytes, status.limit_bytes);
    }
}
