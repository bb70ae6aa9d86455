#include "broker/service/broker_service.h"

#include <algorithm>

#include <sys/stat.h>

#include "base/mutex.h"
#include "base/printable.h"
#include "broker/service/callers.h"
#include "broker/service/core.h"
#include "broker/service/disk_state.h"
#include "broker/service/door.h"
#include "broker/service/gate.h"
#include "broker/service/random_secret.h"
#include "broker/service/to_peers.h"
#include "broker/service/token_judge.h"
#include "broker/service/wall_clock.h"
#include "broker/store/sqlite_store.h"
#include "security/identity.h"
#include "storage/blob_store.h"
#include "storage/files.h"
#include "storage/text_file.h"

namespace weft::broker {

namespace fs = std::filesystem;

namespace {

constexpr uint32_t kLastingTokensMax = 10'000;             // each was revoked but the last: a look-up each
constexpr uint64_t kCopiesInMemory = uint64_t{256} << 20;  // of states that peers copy; the rest are files

Status make_data_dir(const fs::path& folder) {
  storage::Files files;
  WEFT_TRY_STATUS(files.make_directories(folder));
  if (::chmod(folder.c_str(), 0700) != 0)
    return fail(ErrorCode::PermissionDenied,
                folder.string() + " is not this user's: choose another --data-dir");
  return {};
}

fs::path database(const fs::path& data_dir) { return data_dir / "broker.sqlite"; }

StoredToken row_of(const security::Token& token) {
  return {.id = token.id,
          .role = role_of(token.role),
          .secret_digest = security::secret_digest(token.secret),
          .created_unix_ms = unix_ms(),
          .expires_unix_ms = {},
          .uses_max = {}};
}

Result<security::Token> issue(Store& store, const PeerId& broker, const NewToken& wanted) {
  const security::Token token = security::make_token(wanted.role, broker);
  StoredToken row = row_of(token);
  row.uses_max = wanted.uses;
  row.label = wanted.label;
  if (wanted.ttl)
    row.expires_unix_ms =
        row.created_unix_ms + std::chrono::duration_cast<std::chrono::milliseconds>(*wanted.ttl).count();
  WEFT_TRY_STATUS(store.create_token(row));
  return token;
}

// The first that was not revoked, of a row that goes on for ever.
Result<security::Token> lasting_peer_token(Store& store, const security::Identity& broker) {
  for (uint32_t number = 0; number < kLastingTokensMax; ++number) {
    WEFT_TRY(const security::Token token, derive_token(security::Role::Peer, broker, number));
    WEFT_TRY(auto found, store.find_token(token.id));
    if (!found) {
      StoredToken row = row_of(token);
      row.label = "the join line's";
      const Status created = store.create_token(row);
      if (created) return token;
      WEFT_TRY(found, store.find_token(token.id));  // made beside this by another process?
      if (!found) return fail(created.error());
    }
    if (!found->revoked) return token;
  }
  return fail(ErrorCode::ResourceExhausted,
              "every lasting token of this broker was revoked: use `weft token create --role peer`");
}

fs::path address_file(const fs::path& data_dir) { return data_dir / "address"; }

constexpr Duration kAnswersEnd = std::chrono::seconds(2);  // that are under way when the broker is stopped

Result<std::unique_ptr<Door>> open_door(const BrokerServiceOptions& options, Callers& callers,
                                        ToPeers& to_peers) {
  DoorOptions door{.server = {.endpoint = *options.http,
                              .certificate_file = options.http_certificate,
                              .key_file = options.http_key},
                   .check = [&callers](std::string_view token) { return callers.check(token); },
                   .is_open = [&callers] { return callers.nobody_was_invited(); },
                   .log = options.log,
                   .requests = options.data_dir / "requests.sqlite"};
  auto opened = Door::start(std::move(door), [&to_peers](const PeerId& to, proto::Message message) {
    to_peers.tell(to, std::move(message));
  });
  if (!opened) return fail(opened.error().within("--http"));
  return opened;
}

}  // namespace

struct BrokerService::Parts {
  BrokerServiceOptions options;
  storage::Files files;
  std::optional<storage::FolderLock> lock;
  std::unique_ptr<security::Identity> identity;
  std::unique_ptr<storage::BlobStore> blobs;
  std::optional<BlobLeases> leases;
  JobFeeds feeds;
  Bus bus;
  // Of served models: the door outlives those who tell it things.
  ToPeers to_peers;
  std::unique_ptr<Callers> callers;
  std::unique_ptr<Door> door;
  std::shared_ptr<web::LatestMetrics> latest_metrics;
  std::unique_ptr<web::Server> metrics;
  std::unique_ptr<Core> core;
  std::unique_ptr<Gate> gate;
  std::string peer_token;
  std::optional<std::string> submitter_token;

  Mutex mutex;
  Condition changed;
  bool stopping WEFT_GUARDED_BY(mutex) = false;
  std::optional<Error> fatal WEFT_GUARDED_BY(mutex);

  void end(std::optional<Error> error) {
    const MutexLock hold(mutex);
    stopping = true;
    if (error && !fatal) fatal = std::move(error);
    changed.notify_all();
  }
};

// The hashes of what lies there are kept in the broker's own folder.
static Result<std::shared_ptr<const weights::WeightIndex>> open_weights(const BrokerServiceOptions& options) {
  if (options.weights.empty()) return nullptr;
  auto index = weights::WeightIndex::open(
      {.folder = options.weights, .kept = options.data_dir / "weights.jsonl", .log = options.log});
  if (!index) return fail(index.error().within("--weights"));
  return std::shared_ptr<const weights::WeightIndex>(std::move(*index));
}

BrokerService::BrokerService(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

// The gate goes before the core: nobody new comes in while that finishes its turn.
BrokerService::~BrokerService() {
  if (parts_->door) parts_->door->stop(kAnswersEnd);
  parts_->to_peers.set(nullptr);
  parts_->gate.reset();
  parts_->core.reset();
}

Result<std::unique_ptr<BrokerService>> BrokerService::start(BrokerServiceOptions options) {
  auto parts = std::make_unique<Parts>();
  parts->options = std::move(options);
  const fs::path& data_dir = parts->options.data_dir;
  WEFT_TRY_STATUS(make_data_dir(data_dir));
  auto lock = storage::FolderLock::acquire(parts->files, data_dir);
  if (!lock && lock.error().code == ErrorCode::Unavailable)
    return fail(
        ErrorCode::Unavailable,
        data_dir.string() + " is another broker's, which runs: stop it, or choose another --data-dir");
  if (!lock) return fail(lock.error());
  parts->lock.emplace(std::move(*lock));
  WEFT_TRY(parts->identity, security::Identity::load_or_create(data_dir));
  WEFT_TRY(parts->blobs,
           storage::BlobStore::open(data_dir / "blobs",
                                    {.wipe_transient = true, .transient_in_memory = kCopiesInMemory}));
  parts->leases.emplace(parts->options.quota);
  WEFT_TRY_STATUS(parts->files.make_directories(data_dir / "jobs"));
  WEFT_TRY(auto store, open_sqlite_store(database(data_dir)));

  WEFT_TRY(const auto peer_token, lasting_peer_token(*store, *parts->identity));
  parts->peer_token = security::to_text(peer_token);
  WEFT_TRY(const auto known, store->tokens());
  const bool can_submit = std::any_of(known.begin(), known.end(),
                                      [](const StoredToken& token) { return proto::is_user(token.role); });
  if (!can_submit && parts->options.makes_submitter_token) {
    WEFT_TRY(const auto submitter, issue(*store, parts->identity->id(), {.role = security::Role::Submitter}));
    parts->submitter_token = security::to_text(submitter);
  }

  if (parts->options.http) {
    WEFT_TRY(parts->callers, Callers::open(database(data_dir), parts->identity->id()));
    WEFT_TRY(parts->door, open_door(parts->options, *parts->callers, parts->to_peers));
  }
  CoreOptions core;
  core.served = parts->door.get();
  core.broker = parts->options.broker;
  core.broker.heartbeat_interval = core.broker.lease / 5;
  core.broker.return_deadline = core.broker.lease;
  core.broker.draw_secret = random_secret;
  core.broker.run.mean_checks = {
      .draw = random_number, .hash = storage::sha256, .take = replicas::take_piece};
  PlanProcessOptions& planning = core.planning.process;
  planning.program = parts->options.program;
  planning.blobs = data_dir / "blobs";
  planning.jobs = data_dir / "jobs";
  if (core.broker.run.copies_state) planning.copy_rate = core.broker.run.copy_rate;
  planning.memory_max = parts->options.plan_memory;
  core.planning.plan_time_max = parts->options.plan_time;
  core.log = parts->options.log;
  core.keep = parts->options.keep;
  core.look_at_disk = [data_dir] { return look_at_disk(data_dir); };
  if (parts->options.metrics) {
    core.metrics = parts->latest_metrics = std::make_shared<web::LatestMetrics>();
    auto server = web::serve_metrics(*parts->options.metrics, parts->latest_metrics);
    if (!server) return fail(server.error().within("--metrics"));
    parts->metrics = std::move(*server);
  }
  // The core binds the bus, so it comes first.
  WEFT_TRY(parts->core,
           Core::start(std::move(core), std::move(store), parts->bus, *parts->blobs, *parts->leases,
                       parts->feeds, [raw = parts.get()](const Error& error) { raw->end(error); }));
  GateOptions gate;
  WEFT_TRY(gate.weights, open_weights(parts->options));
  gate.listen = parts->options.listen;
  gate.limits = parts->options.limits;
  gate.identity = parts->identity.get();
  gate.log = parts->options.log;
  gate.egress = parts->options.egress;
  gate.served = parts->door.get();
  WEFT_TRY(parts->gate,
           Gate::start(std::move(gate), parts->bus, *parts->blobs, *parts->leases, parts->feeds));
  parts->to_peers.set(parts->gate.get());
  return std::unique_ptr<BrokerService>(new BrokerService(std::move(parts)));
}

net::Endpoint BrokerService::endpoint() const { return parts_->gate->endpoint(); }
std::optional<net::Endpoint> BrokerService::http_endpoint() const {
  return parts_->door ? std::optional(parts_->door->endpoint()) : std::nullopt;
}

std::optional<net::Endpoint> BrokerService::metrics_endpoint() const {
  return parts_->metrics ? std::optional(parts_->metrics->endpoint()) : std::nullopt;
}

std::string BrokerService::advertised() const {
  if (!parts_->options.advertise.empty()) return parts_->options.advertise;
  net::Endpoint bound = endpoint();
  if (bound.host == "0.0.0.0" || bound.host == "::") bound.host = "127.0.0.1";  // --advertise says better
  return net::to_string(bound);
}

const std::string& BrokerService::peer_token() const { return parts_->peer_token; }
const std::optional<std::string>& BrokerService::submitter_token() const { return parts_->submitter_token; }

Status BrokerService::wait() {
  Parts& parts = *parts_;
  const MutexLock hold(parts.mutex);
  parts.changed.wait(parts.mutex, [&]() WEFT_REQUIRES(parts.mutex) { return parts.stopping; });
  if (parts.fatal) return fail(*parts.fatal);
  return {};
}

void BrokerService::stop() { parts_->end(std::nullopt); }

// ---- tokens

Result<MadeToken> create_token(const fs::path& data_dir, const NewToken& token) {
  if (token.label.size() > kTokenLabelMax || printable(token.label) != token.label)
    return fail(ErrorCode::InvalidArgument, "a token's label is one line of at most " +
                                                std::to_string(kTokenLabelMax) +
                                                " bytes, for people to read");
  WEFT_TRY_STATUS(make_data_dir(data_dir));
  WEFT_TRY(const auto identity, security::Identity::load_or_create(data_dir));
  WEFT_TRY(const auto store, open_sqlite_store(database(data_dir)));
  WEFT_TRY(const auto issued, issue(*store, identity->id(), token));
  return MadeToken{security::to_text(issued), issued.id};
}

Result<MadeToken> lasting_peer_token(const fs::path& data_dir) {
  WEFT_TRY_STATUS(make_data_dir(data_dir));
  WEFT_TRY(const auto identity, security::Identity::load_or_create(data_dir));
  WEFT_TRY(const auto store, open_sqlite_store(database(data_dir)));
  WEFT_TRY(const auto token, lasting_peer_token(*store, *identity));
  return MadeToken{security::to_text(token), token.id};
}

Status keep_address(const fs::path& data_dir, const std::string& address) {
  storage::Files files;
  return files.write_atomic(address_file(data_dir), std::as_bytes(std::span(address)));
}

Result<std::string> kept_address(const fs::path& data_dir) {
  WEFT_TRY(std::string text, storage::read_text(address_file(data_dir), 1024));
  const auto endpoint = net::parse_endpoint(text);
  if (!endpoint) return fail(ErrorCode::Corrupted, address_file(data_dir).string() + ": it holds no address");
  return text;
}

namespace {
Result<std::unique_ptr<Store>> open_existing(const fs::path& data_dir) {
  std::error_code code;
  if (!fs::exists(database(data_dir), code))
    return fail(ErrorCode::NotFound, data_dir.string() + " holds no broker: is --data-dir right?");
  return open_sqlite_store(database(data_dir));
}
}  // namespace

Result<std::vector<TokenLine>> list_tokens(const fs::path& data_dir) {
  WEFT_TRY(const auto store, open_existing(data_dir));
  WEFT_TRY(const auto tokens, store->tokens());
  std::vector<TokenLine> lines;
  lines.reserve(tokens.size());
  for (const StoredToken& token : tokens)
    lines.push_back({.id = token.id,
                     .role = role_of(token.role),
                     .created_unix_ms = token.created_unix_ms,
                     .expires_unix_ms = token.expires_unix_ms,
                     .uses_max = token.uses_max,
                     .uses = token.uses,
                     .revoked = token.revoked,
                     .label = token.label});
  return lines;
}

Status revoke_token(const fs::path& data_dir, uint64_t id) {
  WEFT_TRY(const auto store, open_existing(data_dir));
  return store->revoke_token(id);
}

}  // namespace weft::broker
