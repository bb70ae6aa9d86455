#include "broker/service/core.h"

#include <algorithm>
#include <chrono>

#include "proto/codec/codec.h"
#include "security/token.h"

namespace weft::broker {

namespace {

constexpr Duration kTick = std::chrono::milliseconds(500);
constexpr Duration kCollectEvery = std::chrono::minutes(30);
constexpr size_t kEventsAtOnce = 1000;
constexpr int kTurnMessagesMax = 512;

Now now() {
  const auto monotonic = std::chrono::steady_clock::now().time_since_epoch();
  const auto wall = std::chrono::system_clock::now().time_since_epoch();
  return {Instant(std::chrono::duration_cast<Duration>(monotonic)),
          std::chrono::duration_cast<std::chrono::milliseconds>(wall).count()};
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}
std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
std::string text_of(const proto::Secret& secret) {
  return {reinterpret_cast<const char*>(secret.data()), secret.size()};
}

template <typename... F>
struct Overloaded : F... {
  using F::operator()...;
};

}  // namespace

Result<std::unique_ptr<Core>> Core::start(CoreOptions options, std::unique_ptr<Store> store, Bus& bus,
                                          storage::BlobStore& blobs, JobContexts& contexts,
                                          std::function<void(const Error&)> on_fatal) {
  WEFT_TRY(const StoredState state, store->load());
  std::unique_ptr<Core> core(
      new Core(std::move(options), std::move(store), bus, blobs, contexts, std::move(on_fatal), state));
  core->thread_ = std::thread([raw = core.get()] { raw->run(); });
  return core;
}

Core::Core(CoreOptions options, std::unique_ptr<Store> store, Bus& bus, storage::BlobStore& blobs,
           JobContexts& contexts, std::function<void(const Error&)> on_fatal, const StoredState& state)
    : options_(std::move(options)),
      store_(std::move(store)),
      bus_(bus),
      on_fatal_(std::move(on_fatal)),
      socket_(bus),
      broker_(options_.broker, state),
      planner_(options_.jobs_folder, blobs, contexts,
               options_.broker.replicates ? std::optional(options_.broker.replication_rate) : std::nullopt),
      contexts_(contexts),
      blobs_(blobs),
      planner_thread_(std::make_unique<net::Worker>()),
      disk_thread_(std::make_unique<net::Worker>()) {
  disk_thread_->post([this] { blobs_.remove_wiped(); });
  planner_thread_->post([this] { wake_ = std::make_unique<GateSocket>(bus_, "planner"); });
}

Core::~Core() {
  stopping_ = true;
  planner_thread_->post([this] { from_worker([] {}); });
  if (thread_.joinable()) thread_.join();
  planner_thread_->post([this] { wake_.reset(); });
  planner_thread_.reset();
  disk_thread_.reset();
}

void Core::from_worker(std::function<void()> work) {
  {
    const std::lock_guard lock(inbox_mutex_);
    inbox_.push_back(std::move(work));
  }
  if (wake_) wake_->send({.kind = BusKind::Wake, .connection = 0, .payload = {}});
}

void Core::run() {
  Instant next_tick = now().monotonic;
  while (!stopping_ && !failed_) {
    const Duration wait = std::max(Duration::zero(), next_tick - now().monotonic);
    auto message = socket_.receive(wait);
    for (int count = 0; message && count < kTurnMessagesMax; ++count) {
      handle(*message);
      message = socket_.receive(Duration::zero());
    }
    if (message) handle(*message);
    if (now().monotonic >= next_tick) {
      // What the first step wants of the gate would reach nobody before it is there.
      if (gate_is_there_) step(Tick{});
      collect_garbage();
      next_tick = now().monotonic + kTick;
    }
    commit();
  }
}

void Core::handle(const BusMessage& message) {
  if (message.kind == BusKind::Introduced || message.kind == BusKind::Received)
    taken_[message.connection] += message.payload.size();
  switch (message.kind) {
    case BusKind::GateReady:
      gate_is_there_ = true;
      return republish();
    case BusKind::Introduced:
      return introduce(message);
    case BusKind::Received: {
      auto decoded = proto::decode(bytes_of(message.payload));
      if (!decoded) {
        options_.log("warning bad_message what=\"" + decoded.error().message + "\"");
        to_gate(message.connection, BusKind::Close);
        return step(
            Disconnected{message.connection, "it sent what is no message: " + decoded.error().message});
      }
      const auto* failed = std::get_if<proto::StageFailed>(&*decoded);
      if (failed != nullptr && failed->error.code == ErrorCode::Corrupted) put_damaged_blobs_aside();
      return step(Received{message.connection, std::make_shared<const proto::Message>(std::move(*decoded))});
    }
    case BusKind::Disconnected:
      introduced_.erase(message.connection);
      return step(Disconnected{message.connection, message.payload});
    case BusKind::RelayWaiting: {
      RelayWaiting waiting;
      std::copy_n(message.payload.begin(), std::min(message.payload.size(), waiting.ticket.size()),
                  waiting.ticket.begin());
      return step(waiting);
    }
    case BusKind::Wake: {
      std::deque<std::function<void()>> work;
      {
        const std::lock_guard lock(inbox_mutex_);
        work.swap(inbox_);
      }
      for (auto& item : work) item();
      return;
    }
    default:
      return;  // the core's own kinds
  }
}

TokenVerdict Core::judge(const proto::Hello& hello) {
  if (!hello.token) return TokenVerdict::None;
  const auto found = store_->find_token(hello.token->id);
  if (!found || !*found) return TokenVerdict::Unknown;
  const StoredToken& token = **found;
  const Digest shown = security::secret_digest({hello.token->secret});
  if (!security::equal_in_constant_time(shown, token.secret_digest)) return TokenVerdict::Unknown;
  if (token.revoked) return TokenVerdict::Revoked;
  if (token.expires_unix_ms && *token.expires_unix_ms <= now().unix_ms) return TokenVerdict::Expired;
  if (token.uses_max && token.uses >= *token.uses_max) return TokenVerdict::Used;
  const auto role = hello.role == proto::Role::PeerBulk ? proto::Role::Peer : hello.role;
  return token.role == role ? TokenVerdict::Valid : TokenVerdict::Unknown;
}

// Payload: key (32), address length (1), address, Hello.
void Core::introduce(const BusMessage& message) {
  commit();  // so that the store's count of a token's uses is true
  const std::string_view payload = message.payload;
  if (payload.size() < 33 || payload.size() - 33 < static_cast<uint8_t>(payload[32])) return;
  Introduced event;
  event.connection = message.connection;
  std::copy_n(payload.begin(), 32, event.who.digest.bytes.begin());
  const size_t address_size = static_cast<uint8_t>(payload[32]);
  event.address = payload.substr(33, address_size);
  auto decoded = proto::decode(bytes_of(payload.substr(33 + address_size)));
  auto* hello = decoded ? std::get_if<proto::Hello>(&*decoded) : nullptr;
  if (hello == nullptr) {
    send(message.connection,
         proto::Refusal{.code = ErrorCode::InvalidArgument,
                        .message = decoded ? "a connection begins with Hello" : decoded.error().message});
    return to_gate(message.connection, BusKind::Close);
  }
  event.hello = std::move(*hello);
  event.verdict = judge(event.hello);
  introduced_[event.connection] = event.who;
  step(event);
  commit();
}

void Core::step(const Event& event) { turn_.add(broker_.step(now(), event)); }

// Everything of this turn is made durable at once; only then does anybody hear of it.
void Core::commit() {
  if (!turn_.is_durable() && !append()) return;
  Effects turn = turn_.finish();
  for (const Record& record : turn.records)
    if (const auto* event = std::get_if<proto::JobEvent>(&record))
      socket_.publish('e', text_of(proto::encode(*event)));
  for (Effect& effect : turn.effects) carry_out(effect);
  for (const auto& [connection, size] : std::exchange(taken_, {})) {
    std::string payload;
    append_u64(payload, size);
    to_gate(connection, BusKind::Taken, std::move(payload));
  }
}

// A full disk is waited for. False: the process must end.
bool Core::append() {
  for (;;) {
    const Status durable = store_->append(turn_.records());
    const Turn::Verdict verdict = turn_.on_appended(durable);
    if (verdict == Turn::Verdict::Durable) {
      if (std::exchange(disk_is_full_, false)) options_.log("info disk_has_room_again");
      return true;
    }
    if (verdict == Turn::Verdict::Ends || stopping_) {
      options_.log("error store_failed what=\"" + durable.error().message + "\"");
      turn_ = {};
      failed_ = true;
      on_fatal_(durable.error());
      return false;
    }
    if (!std::exchange(disk_is_full_, true))
      options_.log("error disk_full what=\"" + durable.error().message +
                   "\" advice=\"make room where the broker's data directory is; it goes on by itself\"");
    std::this_thread::sleep_for(kDiskFullRetry);
  }
}

// The data of a run that goes on after a restart is opened beside; what peers ask for meanwhile waits.
void Core::open_feed(OpenFeed& feed) {
  if (!feed.submission || contexts_.find(feed.job))
    return to_gates(BusKind::OpenFeed, feed.job, text_of(feed.data_key));
  to_gates(BusKind::ExpectFeed, feed.job, text_of(feed.data_key));
  planner_thread_->post([this, feed = std::move(feed)] {
    const Status opened = planner_.open_data(feed.job, *feed.submission, feed.microbatch_size);
    from_worker([this, job = feed.job, key = feed.data_key, opened] {
      if (opened) return to_gates(BusKind::OpenFeed, job, text_of(key));
      options_.log("error data_not_opened job=" + std::to_string(job) + " what=\"" + opened.error().message +
                   "\"");
      to_gates(BusKind::CloseFeed, job, {});
    });
  });
}

void Core::send(ConnectionId connection, const proto::Message& message) {
  to_gate(connection, BusKind::Send, text_of(proto::encode(message)));
}

void Core::to_gate(ConnectionId connection, BusKind kind, std::string payload) {
  socket_.send(static_cast<uint32_t>(connection >> 48),
               {.kind = kind, .connection = connection, .payload = std::move(payload)});
}

void Core::to_gates(BusKind kind, uint64_t number, std::string payload) {
  socket_.send(0, {.kind = kind, .connection = number, .payload = std::move(payload)});
}

void Core::carry_out(Effect& effect) {
  std::visit(
      Overloaded{
          [&](Send& e) { send(e.connection, *e.message); },
          [&](Admit& e) { to_gate(e.connection, BusKind::Admit, std::string(1, static_cast<char>(e.role))); },
          [&](Close& e) { to_gate(e.connection, BusKind::Close); },
          [&](CheckSubmission& e) {
            planner_thread_->post([this, e = std::move(e)] {
              SubmissionChecked event{e.connection, e.submission, {}};
              const auto checked = planner_.check(e.submission);
              if (!checked) event.verdict = fail(checked.error());
              const auto wanted = checked.value_or(Planner::Wanted{});
              event.submission.compresses = wanted.compresses;
              event.submission.arithmetic = wanted.arithmetic;
              from_worker([this, event = std::move(event)] { step(event); });
            });
          },
          [&](StartPlanning& e) {
            planner_thread_->post([this, e = std::move(e)] {
              auto plan = planner_.plan(e);
              from_worker(
                  [this, event = PlanningDone{e.job, e.plan_version, std::move(plan)}] { step(event); });
            });
          },
          [&](Reconsider& e) {
            planner_thread_->post([this, e = std::move(e)] {
              auto other = planner_.reconsider(e);
              from_worker([this, event = Reconsidered{e.request.job, e.request.plan_version,
                                                      std::move(other)}] { step(event); });
            });
          },
          [&](OpenFeed& e) { open_feed(e); },
          [&](KeepTransient& e) {
            disk_thread_->post([this, kept = std::move(e.blobs), young = e.young] {
              (void)blobs_.keep_transient(kept, std::chrono::duration_cast<std::chrono::milliseconds>(young));
            });
          },
          [&](CloseFeed& e) { to_gates(BusKind::CloseFeed, e.job, {}); },
          [&](GrantRelay& e) { to_gates(BusKind::GrantRelay, 0, text_of(e.ticket)); },
          [&](RevokeRelay& e) { to_gates(BusKind::RevokeRelay, 0, text_of(e.ticket)); },
          [&](PublishStatus& e) {
            socket_.publish('s', text_of(proto::encode(e.status)));
            if (e.status.state >= proto::JobState::Finished) contexts_.erase(e.status.job);
            statuses_[e.status.job] = std::move(e.status);
          },
          [&](PublishPeers& e) {
            socket_.publish('p', text_of(proto::encode(e.peers)));
            peers_ = std::move(e.peers);
          },
          [&](SendEvents& e) { send_events(e); },
          [&](Log& e) { options_.log(e.line); },
      },
      effect);
}

// Now and then, beside the planner's work: blobs that nobody speaks of any more, and the unpacked files of
// jobs that have ended. What was uploaded lately stays (BlobStore::collect): its job may not be submitted
// yet.
void Core::collect_garbage() {
  if (now().monotonic < next_collection_) return;
  next_collection_ = now().monotonic + kCollectEvery;
  planner_thread_->post([this, kept = broker_.referenced_blobs(), open = broker_.open_jobs()] {
    std::error_code code;
    for (const auto& entry : std::filesystem::directory_iterator(options_.jobs_folder, code)) {
      const std::string name = entry.path().filename().string();
      const bool needed =
          std::any_of(open.begin(), open.end(), [&](auto job) { return std::to_string(job) == name; });
      if (!needed) std::filesystem::remove_all(entry.path(), code);
    }
    const auto freed = blobs_.collect(kept);
    const std::string line = freed ? "info blobs_collected bytes_freed=" + std::to_string(*freed)
                                   : "warning blobs_not_collected reason=\"" + freed.error().message + "\"";
    if (!freed || *freed > 0) from_worker([this, line] { options_.log(line); });
  });
}

// A peer was given bytes that are not those of their name: whatever of ours is damaged goes where it can be
// uploaded again. Every blob is compared with its hash, so that a false claim does no harm.
void Core::put_damaged_blobs_aside() {
  if (looks_for_damage_.exchange(true)) return;
  disk_thread_->post([this, blobs = broker_.referenced_blobs()] {
    for (const Digest& blob : blobs)
      if (blobs_.quarantine(blob).value_or(false))
        options_.log("error blob_damaged sha256=" + to_hex(blob) + " advice=\"look after this disk\"");
    looks_for_damage_ = false;
  });
}

void Core::republish() {
  for (const auto& [job, status] : statuses_) socket_.publish('s', text_of(proto::encode(status)));
  socket_.publish('p', text_of(proto::encode(peers_)));
}

// Past events from the store; new ones reach the client from its gate, which has them all from the event
// stream and is told here where to go on.
void Core::send_events(const SendEvents& request) {
  uint64_t next = std::max<uint64_t>(1, request.request.from_sequence);
  bool ended = false;
  for (;;) {
    const auto events = store_->events(request.request.job, next, kEventsAtOnce);
    if (!events)
      return send(request.connection,
                  proto::Refusal{.code = events.error().code, .message = events.error().message});
    for (const proto::JobEvent& event : *events) {
      send(request.connection, event);
      next = event.sequence + 1;
      ended = event.kind == proto::JobEventKind::State && event.state >= proto::JobState::Finished;
    }
    if (events->size() < kEventsAtOnce) break;
  }
  const auto status = statuses_.find(request.request.job);
  ended = ended || (status != statuses_.end() && status->second.state >= proto::JobState::Finished);
  if (ended || !request.request.follow)
    return send(request.connection, proto::EventsEnd{request.request.job});
  std::string payload;
  append_u64(payload, request.request.job);
  append_u64(payload, next - 1);
  to_gate(request.connection, BusKind::Follow, std::move(payload));
}

}  // namespace weft::broker
