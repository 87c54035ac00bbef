//! `[[tenant]]`: who shares the server without seeing each other.

use onesided_protocol::control::UpdateMode;
use onesided_protocol::limits::REGION_BYTES;
use serde::{Deserialize, Serialize};

use super::size::{format_size, parse_size};
use super::{ServerConfig, Token, suggest};
use crate::engine::TABLE_MIN_BYTES;

/// The tenant that is always there. It is configured by the keys outside of `[[tenant]]`, and
/// everything is its that says nothing else.
pub const DEFAULT_TENANT: &str = "default";
/// Tenants of one server, the default one included. Each costs a catalog of its own, and over RDMA
/// receive buffers of its own.
pub const TENANTS_MAX: usize = 64;
/// Longest name.
const NAME_MAX_BYTES: usize = 64;

/// A tenant: a set of clients, told by their token, whose tables and memory no other client sees.
#[derive(Clone, PartialEq, Debug)]
pub struct TenantSpec {
    /// Its name, in the configuration and the log.
    pub name: String,
    /// What its clients must know. `None` for the default tenant lets everybody in.
    pub token: Option<Token>,
    /// Bytes of `memory` that its tables may take; `None` = all, as far as others left it.
    pub memory_bytes: Option<usize>,
    /// Whether its clients may make, alter and drop tables.
    pub manage_tables: bool,
}

impl TenantSpec {
    /// A tenant without limits of its own, and without a token.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), token: None, memory_bytes: None, manage_tables: true }
    }
}

/// A `[[tenant]]` of the file.
#[derive(Clone, Default, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct FileTenant {
    /// Required.
    pub name: Option<String>,
    /// Path.
    pub token_file: Option<String>,
    /// Size, e.g. `4GiB`.
    pub memory: Option<String>,
    /// Default: true.
    pub manage_tables: Option<bool>,
}

impl FileTenant {
    pub(super) fn spec(self) -> Result<TenantSpec, String> {
        let name = self.name.ok_or("a [[tenant]] has no name: add name = \"...\"")?;
        let named = |error: String| format!("tenant `{name}`: {error}");
        let size = |text: String| {
            let bytes = parse_size(&text)?;
            usize::try_from(bytes).map_err(|_| format!("`{text}` is too much"))
        };
        let memory = self.memory.map(size).transpose();
        let memory_bytes = memory.map_err(|error| named(format!("memory: {error}")))?;
        let token = super::file::token("token_file", self.token_file.as_deref()).map_err(named)?;
        let manage_tables = self.manage_tables.unwrap_or(true);
        Ok(TenantSpec { token, memory_bytes, manage_tables, name })
    }
}

impl ServerConfig {
    /// The names of all tenants, the default one's first.
    #[must_use]
    pub fn tenant_names(&self) -> Vec<String> {
        self.all_tenants().into_iter().map(|tenant| tenant.name).collect()
    }

    /// All tenants: the default one is the first.
    pub(crate) fn all_tenants(&self) -> Vec<TenantSpec> {
        let is_default = |tenant: &&TenantSpec| tenant.name == DEFAULT_TENANT;
        let default = self.tenants.iter().find(is_default).cloned();
        let mut default = default.unwrap_or_else(|| TenantSpec::new(DEFAULT_TENANT));
        default.token = default.token.or_else(|| self.token.clone());
        let others = self.tenants.iter().filter(|tenant| !is_default(tenant)).cloned();
        std::iter::once(default).chain(others).collect()
    }

    pub(super) fn check_tenants(&self) -> Result<(), String> {
        for tenant in &self.tenants {
            self.check_tenant(tenant)
                .map_err(|error| format!("tenant `{}`: {error}", tenant.name))?;
        }
        let all = self.all_tenants();
        if all.len() > TENANTS_MAX {
            return Err(format!("{} tenants; there may be {TENANTS_MAX}", all.len()));
        }
        for (n, tenant) in all.iter().enumerate() {
            if let Some(other) = all[..n].iter().find(|other| other.name == tenant.name) {
                return Err(format!("tenant `{}` is given twice; leave one out", other.name));
            }
            let same = |other: &&TenantSpec| other.token.is_some() && other.token == tenant.token;
            if let Some(other) = all[..n].iter().find(same) {
                return Err(format!(
                    "tenants `{}` and `{}` have the same token, by which they are told apart; give \
                     each one of its own",
                    other.name, tenant.name
                ));
            }
        }
        if self.tenants.iter().filter(|tenant| tenant.name == DEFAULT_TENANT).count() > 1 {
            return Err(format!("tenant `{DEFAULT_TENANT}` is given twice; leave one out"));
        }
        self.check_room(&all)
    }

    fn check_tenant(&self, tenant: &TenantSpec) -> Result<(), String> {
        let len = tenant.name.len();
        let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if !(1..=NAME_MAX_BYTES).contains(&len) || !tenant.name.chars().all(good) {
            return Err(format!(
                "a name has 1 to {NAME_MAX_BYTES} letters, digits, `-`, `_` and `.`"
            ));
        }
        match (&tenant.token, &self.token, tenant.name == DEFAULT_TENANT) {
            (None, _, false) => {
                return Err("it has no token, by which its clients are told: set token_file".into());
            }
            (Some(_), Some(_), true) => {
                return Err("its token_file is given twice, here and above; leave one out".into());
            }
            _ => {}
        }
        let (most, least) = (self.memory_bytes, 2 * self.segment_bytes);
        match tenant.memory_bytes {
            Some(bytes) if !(least..=most).contains(&bytes) => Err(format!(
                "memory is {}; it must be from {}, for an index and entries, to {}, what the \
                 server has",
                format_size(bytes as u64),
                format_size(least as u64),
                format_size(most as u64)
            )),
            _ => Ok(()),
        }
    }

    /// A region belongs to one tenant: everyone needs one.
    fn check_room(&self, all: &[TenantSpec]) -> Result<(), String> {
        let region_bytes = self.region_bytes.min(REGION_BYTES);
        let first = |tenant: &TenantSpec| tenant.memory_bytes.unwrap_or(usize::MAX);
        let needed: usize = all.iter().map(|tenant| first(tenant).min(region_bytes)).sum();
        if all.len() == 1 || needed <= self.memory_bytes {
            return Ok(());
        }
        Err(format!(
            "memory is {}; with {} tenants it must be at least {}: it is taken in pieces of {}, \
             each of which belongs to one tenant. Raise it, or give tenants a smaller `memory`",
            format_size(self.memory_bytes as u64),
            all.len(),
            format_size(needed as u64),
            format_size(region_bytes as u64),
        ))
    }

    pub(super) fn check_tables(&self) -> Result<(), String> {
        let all = self.all_tenants();
        let names: Vec<&str> = all.iter().map(|tenant| tenant.name.as_str()).collect();
        for (n, table) in self.tables.iter().enumerate() {
            if !names.contains(&table.tenant.as_str()) {
                let hint = suggest::hint(&table.tenant, &names);
                let (name, tenant) = (&table.name, &table.tenant);
                return Err(format!("table `{name}`: there is no tenant `{tenant}`; {hint}"));
            }
            let same = |other: &super::TableSpec| {
                (&other.name, &other.tenant) == (&table.name, &table.tenant)
            };
            if self.tables[..n].iter().any(same) {
                return Err(format!("table `{}` is given twice; leave one out", table.name));
            }
            let quota = table.options.quota_bytes;
            if (1..=TABLE_MIN_BYTES).contains(&quota) {
                return Err(format!(
                    "the quota of table `{}` is {}, and its index takes {} before there is any \
                     key: raise the quota, or leave it out",
                    table.name,
                    format_size(quota),
                    format_size(TABLE_MIN_BYTES)
                ));
            }
        }
        self.check_floors()
    }

    /// How much they leave to cleaning is looked at when they are made.
    fn check_floors(&self) -> Result<(), String> {
        let floors = self.tables.iter().map(|table| table.options.floor_bytes);
        let sum = floors.fold(0, u64::saturating_add);
        let memory = self.memory_bytes as u64;
        if sum > memory {
            return Err(format!(
                "the floors of all tables are {}, and memory is {}: they must fit into it",
                format_size(sum),
                format_size(memory)
            ));
        }
        Ok(())
    }

    /// What can be, and is hardly meant.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let memory = self.memory_bytes as u64;
        let mut warnings = Vec::new();
        if self.value_max_bytes as u64 > memory {
            warnings.push(format!(
                "value_max is {}, and memory is {}: longer values are refused",
                format_size(self.value_max_bytes as u64),
                format_size(memory)
            ));
        }
        for table in &self.tables {
            if table.options.update == UpdateMode::Cas && self.updates_over().is_none() {
                warnings.push(format!(
                    "table `{}` has update=cas, and no fabric lets clients change words: all \
                     updates will be RPCs",
                    table.name
                ));
            }
            let quota = table.options.quota_bytes;
            let tenant = self.all_tenants().into_iter().find(|tenant| tenant.name == table.tenant);
            let most = tenant.and_then(|tenant| tenant.memory_bytes).map_or(memory, |m| m as u64);
            if quota > most.min(memory) {
                warnings.push(format!(
                    "the quota of table `{}` is {}, and it has {} of memory: the quota never holds",
                    table.name,
                    format_size(quota),
                    format_size(most.min(memory))
                ));
            }
        }
        warnings
    }
}
