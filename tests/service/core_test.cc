// The core on its thread: what it makes of what gates say and of what the store answers.
#include "broker/service/core.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <condition_variable>
#include <future>

#include "security/token.h"
#include "tests/service/flaky_store.h"
#include "tests/support/scratch.h"

namespace weft::broker {
namespace {

using proto::Role;

constexpr int kPatience = 60'000;  // milliseconds

Instant now() {
  return Instant(std::chrono::duration_cast<Duration>(std::chrono::steady_clock::now().time_since_epoch()));
}

// A gate without connections: what the core tells it, in order.
class FakeGate {
 public:
  FakeGate(Bus& bus, uint32_t number) : number_(number), socket_(bus, gate_identity(number)) {
    say(GateReady{});
  }
  template <typename T>
  void say(T what, uint64_t size = 0) {
    socket_.send({.gate = number_, .size = size, .what = std::move(what)});
  }
  ConnectionId connection(uint64_t n) const { return first_connection_of(number_) + n; }

  // The next that is a T, of this connection where it says so; what comes before it is passed over.
  template <typename T>
  std::optional<T> next(std::optional<ConnectionId> connection = {}) {
    for (;;) {
      const auto message = receive();
      if (!message) {
        ADD_FAILURE() << "the core says no such thing";
        return std::nullopt;
      }
      const T* wanted = std::get_if<T>(message.get());
      if (wanted == nullptr) continue;
      if constexpr (requires { wanted->connection; })
        if (connection && wanted->connection != *connection) continue;
      return *wanted;
    }
  }
  template <typename M>
  std::optional<M> next_message(ConnectionId connection) {
    for (;;) {
      const auto send = next<Send>(connection);
      if (!send) return std::nullopt;
      if (const auto* wanted = std::get_if<M>(send->message.get())) return *wanted;
    }
  }

 private:
  std::shared_ptr<const ToGate> receive() {
    for (;;) {
      if (auto message = socket_.receive()) return message;
      pollfd ready{.fd = socket_.descriptor(), .events = POLLIN, .revents = 0};
      if (::poll(&ready, 1, kPatience) <= 0) return nullptr;
    }
  }
  uint32_t number_;
  GateSocket socket_;
};

class CoreTest : public ::testing::Test {
 protected:
  CoreTest() : blobs_(*storage::BlobStore::open(scratch_.folder() / "blobs")) {
    options_.broker.software = "test";
    options_.broker.draw_secret = [n = uint8_t{0}]() mutable { return proto::Secret{++n}; };
    options_.planning.process.jobs = scratch_.folder() / "jobs";
    options_.log = [this](const std::string& line) {
      const std::lock_guard lock(mutex_);
      log_ += line + "\n";
      logged_.notify_all();
    };
    for (const auto& [id, role] : {std::pair(1, Role::Peer), std::pair(2, Role::Submitter)})
      EXPECT_TRUE(store_->create_token({.id = static_cast<uint64_t>(id),
                                        .role = role,
                                        .secret_digest = security::secret_digest({}),
                                        .created_unix_ms = 0,
                                        .expires_unix_ms = {},
                                        .uses_max = {}}));
  }
  void start() {
    std::filesystem::create_directories(options_.planning.process.jobs);
    auto core = Core::start(options_, std::unique_ptr<Store>(owned_.release()), bus_, *blobs_, leases_,
                            feeds_, [this](const Error&) {
                              is_over_ = true;
                              over_.set_value();
                            });
    ASSERT_TRUE(core) << core.error().message;
    core_ = std::move(*core);
  }
  static PeerId user_key() {  // of introduction(..., 1, ...)
    PeerId key;
    key.digest.bytes[0] = 1;
    return key;
  }
  static Introduced introduction(ConnectionId connection, uint8_t key, Role role, const std::string& name) {
    Introduced hello{.connection = connection, .address = "192.0.2.1:1000"};
    hello.who.digest.bytes[0] = key;
    hello.hello.role = role;
    hello.hello.name = name;
    hello.hello.token = proto::TokenProof{.id = role == Role::Submitter ? uint64_t{2} : uint64_t{1}};
    if (role == Role::Peer)
      hello.hello.device = proto::DeviceReport{.device = "cpu:1", .threads = 1, .memory = {1 << 30}};
    return hello;
  }
  template <typename M>
  static Received received(ConnectionId connection, M message) {
    return {connection, std::make_shared<const proto::Message>(std::move(message))};
  }
  bool wait_for_log(const std::string& words) {
    std::unique_lock lock(mutex_);
    return logged_.wait_for(lock, std::chrono::milliseconds(kPatience),
                            [&] { return log_.find(words) != std::string::npos; });
  }
  std::string log() {
    const std::lock_guard lock(mutex_);
    return log_;
  }

  test::Scratch scratch_;
  std::unique_ptr<storage::BlobStore> blobs_;
  BlobLeases leases_;
  JobFeeds feeds_;
  Bus bus_;
  CoreOptions options_;
  std::unique_ptr<FlakyStore> owned_ = std::make_unique<FlakyStore>();
  FlakyStore* store_ = owned_.get();
  std::mutex mutex_;
  std::condition_variable logged_;
  std::string log_;  // guarded by mutex_
  std::atomic<bool> is_over_ = false;
  std::promise<void> over_;
  std::unique_ptr<Core> core_;
};

Status refuse_those_called(std::span<const Record> records, const std::string& name) {
  for (const Record& record : records)
    if (const auto* admitted = std::get_if<PrincipalAdmitted>(&record); admitted && admitted->name == name)
      return fail(ErrorCode::InvalidArgument, "a row of 16 MiB");
  return {};
}

TEST_F(CoreTest, ARecordThatTheStoreRefusesCostsItsSenderAlone) {
  store_->set_verdict([](auto records) { return refuse_those_called(records, "bad"); });
  start();
  FakeGate gate(bus_, 0);
  const ConnectionId bad = gate.connection(1), good = gate.connection(2);
  gate.say(introduction(bad, 1, Role::Peer, "bad"));
  gate.say(introduction(good, 2, Role::Peer, "good"));
  EXPECT_TRUE(gate.next<Close>(bad));
  const auto admitted = gate.next<Admit>();
  ASSERT_TRUE(admitted);
  EXPECT_EQ(admitted->connection, good) << "nobody hears of what is not durable";
  EXPECT_FALSE(is_over_);
  EXPECT_NE(log().find("records_refused"), std::string::npos) << log();
}

// Of a turn of several events, what else there is becomes durable and is carried out.
TEST_F(CoreTest, OthersOfTheSameTurnAreNotTouched) {
  const auto held = std::make_shared<std::mutex>();
  held->lock();
  store_->set_verdict([held](auto records) -> Status {
    const std::lock_guard until_told(*held);
    size_t stops = 0;
    for (const Record& record : records)
      if (const auto* changed = std::get_if<JobChanged>(&record))
        stops += changed->state == proto::JobState::Stopped;
    return stops > 1 ? fail(ErrorCode::PermissionDenied, "two at once") : Status{};
  });
  for (const proto::JobNumber job : {1, 2})
    ASSERT_TRUE(store_->memory().append(std::vector<Record>{
        JobSubmitted{.job = job, .submitter = user_key(), .submission = proto::SubmitJob{.name = "j"}},
        JobChanged{.job = job}}));
  start();
  FakeGate gate(bus_, 0);
  const ConnectionId user = gate.connection(1);
  gate.say(introduction(user, 1, Role::Submitter, ""));
  // The core waits for the store; both lie on the bus when it goes on.
  for (const proto::JobNumber job : {1, 2}) gate.say(received(user, proto::StopJob{job}));
  held->unlock();
  EXPECT_TRUE(gate.next_message<proto::Done>(user));
  EXPECT_TRUE(gate.next_message<proto::Done>(user));
  EXPECT_FALSE(is_over_);
}

TEST_F(CoreTest, AFullDiskIsWaitedFor) {
  const auto failures = std::make_shared<std::atomic<int>>(2);
  store_->set_verdict([failures](auto) -> Status {
    if ((*failures)-- > 0) return fail(ErrorCode::ResourceExhausted, "full");
    return {};
  });
  start();
  FakeGate gate(bus_, 0);
  gate.say(introduction(gate.connection(1), 1, Role::Peer, "p"));
  EXPECT_TRUE(gate.next<Admit>());
  EXPECT_LT(*failures, 0);
  EXPECT_NE(log().find("disk_has_room_again"), std::string::npos) << log();
}

TEST_F(CoreTest, AStoreThatCannotBeTrustedEndsIt) {
  store_->set_verdict([](auto) -> Status { return fail(ErrorCode::Corrupted, "malformed"); });
  start();
  FakeGate gate(bus_, 0);
  gate.say(introduction(gate.connection(1), 1, Role::Peer, "p"));
  EXPECT_EQ(over_.get_future().wait_for(std::chrono::milliseconds(kPatience)), std::future_status::ready);
}

// Instants are the gate's: who was heard an hour from now was not silent until then, whatever the time is
// here; who was not heard by then was.
TEST_F(CoreTest, SilenceIsWhatTheGateSaysItIs) {
  start();
  FakeGate gate(bus_, 0);
  const ConnectionId heard = gate.connection(1), silent = gate.connection(2);
  gate.say(introduction(heard, 1, Role::Peer, "heard"));
  gate.say(introduction(silent, 2, Role::Peer, "silent"));
  ASSERT_TRUE(gate.next<Admit>(silent));
  const Instant later = now() + std::chrono::hours(1);
  gate.say(Hearing{later, {{heard, later, {}}}});
  const auto closed = gate.next<Close>();
  ASSERT_TRUE(closed);
  EXPECT_EQ(closed->connection, silent);
  gate.say(Hearing{later + std::chrono::hours(1), {}});
  const auto then = gate.next<Close>();
  ASSERT_TRUE(then);
  EXPECT_EQ(then->connection, heard);
}

TEST_F(CoreTest, CollectionLeavesWhatSomebodyHasALeaseOn) {
  const auto put = [&](uint8_t n) {
    const Digest blob = *blobs_->put(std::vector<std::byte>(100, std::byte{n}));
    std::filesystem::last_write_time(*blobs_->find(blob),
                                     std::filesystem::file_time_type::clock::now() - std::chrono::hours(2));
    return blob;
  };
  const Digest leased = put(1), forgotten = put(2);
  leases_.connect(PeerId{});
  leases_.ask(PeerId{}, leased, now());
  start();
  EXPECT_TRUE(wait_for_log("blobs_collected bytes_freed=100")) << log();
  EXPECT_TRUE(blobs_->find(leased));
  EXPECT_FALSE(blobs_->find(forgotten));
}

TEST_F(CoreTest, EachGateIsTold) {
  options_.broker.measures_links = true;
  start();
  FakeGate first(bus_, 0), second(bus_, 1);
  // Two that have nothing to do measure the link between them; neither can be reached but by the relay.
  first.say(introduction(first.connection(1), 1, Role::Peer, "a"));
  second.say(introduction(second.connection(1), 2, Role::Peer, "b"));
  EXPECT_TRUE(second.next<Admit>(second.connection(1)));
  const auto at_first = first.next<GrantRelay>(), at_second = second.next<GrantRelay>();
  ASSERT_TRUE(at_first && at_second);
  EXPECT_EQ(at_first->ticket, at_second->ticket);
  FakeGate late(bus_, 2);
  const auto at_late = late.next<GrantRelay>();
  ASSERT_TRUE(at_late);
  EXPECT_EQ(at_late->ticket, at_first->ticket);
}

TEST_F(CoreTest, EventsGoOutInPages) {
  std::vector<Record> records{
      JobSubmitted{.job = 1, .submitter = user_key(), .submission = proto::SubmitJob{.name = "j"}},
      JobChanged{.job = 1}};
  for (uint64_t sequence = 1; sequence <= 1200; ++sequence) {
    proto::JobEvent event{.job = 1, .sequence = sequence, .kind = proto::JobEventKind::Notice};
    if (sequence > 1100) event.text.assign(60'000, 'x');
    records.push_back(event);
  }
  ASSERT_TRUE(store_->memory().append(records));
  start();
  FakeGate gate(bus_, 0);
  const ConnectionId user = gate.connection(1);
  gate.say(introduction(user, 1, Role::Submitter, ""));
  ASSERT_TRUE(gate.next<Admit>());
  proto::GetEvents request{.job = 1, .from_sequence = 1, .follow = true};
  uint64_t last = 0;
  size_t pages = 0;
  for (std::optional<uint64_t> follows; !follows; ++pages) {
    gate.say(received(user, request), 10);
    const auto page = gate.next<EventsPage>(user);
    ASSERT_TRUE(page);
    EXPECT_LE(page->events.size(), 500u);
    for (const proto::JobEvent& event : page->events) ASSERT_EQ(event.sequence, ++last);
    const auto taken = gate.next<Taken>(user);
    ASSERT_TRUE(taken);
    EXPECT_EQ(taken->size, 10u);
    follows = page->follows_after;
    EXPECT_NE(follows.has_value(), page->rest.has_value());
    if (page->rest) request = *page->rest;
    EXPECT_EQ(follows.value_or(last), last);
  }
  EXPECT_GE(last, 1200u);
  EXPECT_GE(pages, 3u + 100 * 60'000 / (1 << 20)) << "long texts make them shorter";
}

// Until a submission was looked at, nothing more of its sender counts as taken: one lies with the planner.
TEST_F(CoreTest, ASubmissionIsTakenWhenItWasLookedAt) {
  start();
  FakeGate gate(bus_, 0);
  const ConnectionId user = gate.connection(1);
  gate.say(introduction(user, 1, Role::Submitter, ""));
  ASSERT_TRUE(gate.next<Admit>());
  gate.say(received(user, proto::SubmitJob{.name = "nothing", .job = "no: job"}), 1000);
  EXPECT_TRUE(gate.next_message<proto::Refusal>(user));
  const auto taken = gate.next<Taken>(user);
  ASSERT_TRUE(taken);
  EXPECT_EQ(taken->size, 1000u);
}

// What the core says of jobs that serve, in order.
class Watching final : public ServedView {
 public:
  void on_served(const ServedJob& job) override { add(job); }
  void on_withdrawn(proto::JobNumber) override { add(std::nullopt); }
  void on_progress(const PeerId&, const proto::ServeProgress&) override {}
  // The next of which `wanted` is true; nothing: it does not come.
  std::optional<std::optional<ServedJob>> next(const auto& wanted) {
    std::unique_lock lock(mutex_);
    std::optional<std::optional<ServedJob>> found;
    changed_.wait_for(lock, std::chrono::milliseconds(kPatience), [&] {
      for (; !said_.empty() && !found; said_.pop_front())
        if (wanted(said_.front())) found = said_.front();
      return found.has_value();
    });
    return found;
  }

 private:
  void add(std::optional<ServedJob> said) {
    const std::lock_guard lock(mutex_);
    said_.push_back(std::move(said));
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::optional<ServedJob>> said_;
};

// A served job as a broker before this one left it, whose tokenizer lies partly in the submission and partly
// in a blob.
class CoreServes : public CoreTest {
 protected:
  void SetUp() override {
    const std::string rest = "\"rest\"}";
    const auto bytes = std::as_bytes(std::span(rest));
    const Digest blob = storage::sha256(bytes);
    if (has_blob_) {
      ASSERT_TRUE(blobs_->put(bytes));
    }
    proto::SubmitJob job{.name = "j"};
    job.files = {{.path = "model.onnx", .pieces = {{.bytes = "x", .size = 1}}},
                 {.path = "tokenizer.json",
                  .pieces = {{.bytes = "{\"a\": ", .size = 6}, {.sha256 = blob, .size = rest.size()}}}};
    auto plan = std::make_shared<PlannedRun>();
    plan->served = {.name = "m", .tokenizer = "tokenizer.json", .context = 16};
    PlannedStage stage;
    stage.peer.digest.bytes[0] = 7;
    auto assignment = std::make_shared<proto::AssignStage>();
    assignment->run = 1;
    assignment->plan_version = 3;
    assignment->stage_count = 1;
    assignment->serve = proto::ServeProgram{};
    stage.assignment = std::shared_ptr<const proto::AssignStage>(std::move(assignment));
    plan->stages.push_back(std::move(stage));
    ASSERT_TRUE(store_->memory().append(std::vector<Record>{
        JobSubmitted{.job = 1, .submitter = user_key(), .submission = job, .unix_ms = 5000},
        JobChanged{.job = 1, .state = proto::JobState::Running, .plan_version = 3},
        RunStarted{.job = 1, .plan_version = 3, .plan = plan}}));
    options_.served = &view_;
    start();
  }
  void TearDown() override { core_.reset(); }
  // The peer of its only stage comes back.
  void resume(FakeGate& gate) {
    const ConnectionId peer = gate.connection(1);
    Introduced hello = introduction(peer, 7, Role::Peer, "p");
    hello.hello.minor = proto::kProtocolMinor;
    hello.hello.holding = {proto::StageHeld{.run = 1, .plan_version = 3, .seat = {0}}};
    gate.say(hello);
    ASSERT_TRUE(gate.next_message<proto::ResumeStage>(peer));
    gate.say(received(peer, proto::StageResumed{.run = 1, .plan_version = 3}));
  }

  bool has_blob_ = true;
  Watching view_;
};

TEST_F(CoreServes, ItsPlaceAndItsTokenizerAreSaidAndWithdrawnAtItsEnd) {
  FakeGate gate(bus_, 0);
  const auto before = view_.next([](const auto& said) { return said.has_value(); });
  ASSERT_TRUE(before);
  EXPECT_FALSE((*before)->place);
  EXPECT_EQ((*before)->unavailable, "its first stage has yet to come back");
  resume(gate);
  const auto served = view_.next([](const auto& said) { return said && said->place; });
  ASSERT_TRUE(served);
  const ServedJob& job = **served;
  PeerId entry;
  entry.digest.bytes[0] = 7;
  EXPECT_EQ(*job.place, (ServedPlace{1, 3, entry}));
  EXPECT_EQ(job.job, 1u);
  EXPECT_EQ(job.model.name, "m");
  EXPECT_EQ(job.model.context, 16u);
  EXPECT_EQ(job.tokenizer_json, "{\"a\": \"rest\"}");
  EXPECT_EQ(job.created, 5);
  EXPECT_EQ(job.unavailable, "");
  // The gate knows it before anybody asks anything of the entry; one that comes later is told, too.
  std::optional<ServedEntry> said;
  do said = gate.next<ServedEntry>();
  while (said && !said->entry);
  ASSERT_TRUE(said);
  EXPECT_EQ(said->entry, entry);
  FakeGate later(bus_, 1);
  const auto told = later.next<ServedEntry>();
  ASSERT_TRUE(told);
  EXPECT_EQ(told->entry, entry);
  EXPECT_EQ(told->plan_version, 3u);

  const ConnectionId user = gate.connection(2);
  gate.say(introduction(user, 1, Role::Submitter, ""));
  gate.say(received(user, proto::StopJob{1}));
  EXPECT_TRUE(gate.next_message<proto::Done>(user));
  EXPECT_TRUE(view_.next([](const auto& gone) { return !gone; })) << "withdrawn";
  const auto closed = gate.next<ServedEntry>();
  ASSERT_TRUE(closed);
  EXPECT_FALSE(closed->entry);
  EXPECT_EQ(log().find("data_not_opened"), std::string::npos) << "nothing feeds it";
}

class CoreServesWithoutTokenizer : public CoreServes {
 protected:
  CoreServesWithoutTokenizer() { has_blob_ = false; }
};

TEST_F(CoreServesWithoutTokenizer, WithoutItsTokenizerItCannotBeAsked) {
  FakeGate gate(bus_, 0);
  resume(gate);
  const auto served = view_.next(
      [](const auto& said) { return said && said->unavailable.starts_with("its tokenizer cannot be read"); });
  ASSERT_TRUE(served);
  EXPECT_FALSE((*served)->place);
}

}  // namespace
}  // namespace weft::broker
