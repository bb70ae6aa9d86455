#include "broker/service/core.h"

#include <algorithm>
#include <chrono>

#include "base/overloaded.h"
#include "broker/jobs/answers.h"
#include "broker/service/event_pages.h"
#include "broker/service/token_judge.h"
#include "broker/service/wall_clock.h"
#include "proto/codec/codec.h"

namespace weft::broker {

namespace {

constexpr Duration kTick = std::chrono::milliseconds(500);
constexpr int kTurnMessagesMax = 512;

}  // namespace

Now Core::now() {
  const auto monotonic = std::chrono::steady_clock::now().time_since_epoch();
  return {Instant(std::chrono::duration_cast<Duration>(monotonic)), unix_ms()};
}

Result<std::unique_ptr<Core>> Core::start(CoreOptions options, std::unique_ptr<Store> store, Bus& bus,
                                          storage::BlobStore& blobs, BlobLeases& leases, JobFeeds& feeds,
                                          std::function<void(const Error&)> on_fatal) {
  WEFT_TRY(const StoredState state, store->load());
  std::unique_ptr<Core> core(
      new Core(std::move(options), std::move(store), bus, blobs, leases, feeds, std::move(on_fatal), state));
  core->thread_ = std::thread([raw = core.get()] { raw->run(); });
  return core;
}

Core::Core(CoreOptions options, std::unique_ptr<Store> store, Bus& bus, storage::BlobStore& blobs,
           BlobLeases& leases, JobFeeds& feeds, std::function<void(const Error&)> on_fatal,
           const StoredState& state)
    : options_(std::move(options)),
      store_(std::move(store)),
      on_fatal_(std::move(on_fatal)),
      socket_(bus),
      broker_(options_.broker, state),
      blobs_(blobs),
      feeds_(feeds, gates_),
      keeper_(blobs, leases, *this, options_.collect_every),
      inbox_(bus),
      disk_thread_(std::make_unique<net::Worker>()),
      served_thread_(std::make_unique<net::Worker>()),
      planning_(std::make_unique<Planning>(options_.planning, blobs, feeds)) {
  keeper_.remove_old(options_.planning.process.jobs, broker_.open_jobs());
}

Core::~Core() {
  stopping_ = true;
  inbox_.leave([] {});
  if (thread_.joinable()) thread_.join();
  planning_.reset();
  disk_thread_.reset();
  served_thread_.reset();
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
      if (!gates_.is_empty()) {
        look_at_tokens();
        step(Tick{gates_.heard_until(), disk_.take()});
      }
      look_at_disk();
      collect_garbage();
      if (options_.metrics) options_.metrics->set(broker_.metrics());
      next_tick = now().monotonic + kTick;
    }
    commit();
  }
  if (failed_) return;
  step(Leaving{});
  commit();
}

void Core::handle(const ToCore& message) {
  std::visit(Overloaded{
                 [&](const GateReady&) { gates_.on_ready(message.gate, now().monotonic); },
                 [&](const Introduced& e) {
                   taken_[e.connection] += message.size;
                   introduce(e);
                 },
                 [&](Received e) {
                   taken_[e.connection] += message.size;
                   receive(std::move(e));
                 },
                 [&](const Disconnected& e) {
                   forget(e.connection);
                   step(e);
                 },
                 [&](const RelayWaiting& e) { step(e); },
                 [&](const Hearing& hearing) {
                   for (const Heard& e : hearing.peers) step(e);
                   gates_.on_hearing(message.gate, hearing.until);
                 },
                 [&](const Wake&) { inbox_.empty(); },
             },
             message.what);
}

void Core::receive(Received message) {
  keeper_.on_received(message, now().monotonic);
  if (const auto* report = std::get_if<proto::CheckpointReport>(message.message.get()))
    message.blobs_missing = keeper_.missing_of(*report);
  step(message);
}

void Core::forget(ConnectionId connection) {
  connections_.erase(connection);
  keeper_.end(connection);
}

// Whoever creates and revokes tokens does it in the database, beside this process.
void Core::look_at_tokens() {
  auto revoked = store_->revoked_tokens_if_changed();
  if (revoked && *revoked) step(TokensRevoked{std::move(**revoked)});
}

void Core::introduce(Introduced event) {
  commit();  // so that the store's count of a token's uses is true
  const TokenJudgement judged = judge_token(*store_, event.hello, now().unix_ms);
  event.verdict = judged.verdict;
  event.token_role = judged.role;
  connections_[event.connection] = judged.label.empty() ? "key " + to_string(event.who) : judged.label;
  keeper_.begin(event.connection, event.who);
  step(event);
  commit();
}

void Core::step(const Event& event) { turn_.add(event, broker_.step(now(), event)); }

// Everything of this turn is made durable before anybody hears of it.
void Core::commit() {
  while (!turn_.is_empty()) {
    if (!append()) return;
    for (Turn::Done done = turn_.finish(); Turn::Part & part : done.parts) {
      if (part.is_refused) {
        if (part.sender) close_sender(*part.sender);
        continue;
      }
      on_durable(part.records);
      for (Effect& effect : part.effects) carry_out(effect);
    }
  }
  for (const auto& [connection, size] : std::exchange(taken_, {}))
    gates_.tell(connection, Taken{connection, size});
}

// A full disk is waited for. False: the process must end.
bool Core::append() {
  while (!turn_.to_append().empty()) {
    const std::span<const Record> records = turn_.to_append();
    const Status durable = store_->append(records);
    switch (turn_.on_appended(durable)) {
      case Turn::Verdict::Durable:
        if (std::exchange(disk_is_full_, false)) options_.log("info disk_has_room_again");
        break;
      case Turn::Verdict::Refused:
        options_.log("error records_refused count=" + std::to_string(records.size()) + " what=\"" +
                     durable.error().message + "\"");
        break;
      case Turn::Verdict::Waits:
        if (stopping_) return fail_with(durable.error());
        if (!std::exchange(disk_is_full_, true))
          options_.log("error disk_full what=\"" + durable.error().message +
                       "\" advice=\"make room where the broker's data directory is; it goes on by itself\"");
        std::this_thread::sleep_for(kDiskFullRetry);
        break;
      case Turn::Verdict::Ends:
        return fail_with(durable.error());
    }
  }
  return true;
}

bool Core::fail_with(const Error& error) {
  options_.log("error store_failed what=\"" + error.message + "\"");
  turn_ = {};
  failed_ = true;
  on_fatal_(error);
  return false;
}

void Core::close_sender(ConnectionId connection) {
  const std::string why = "what it said cannot be stored";
  answer(connection, proto::Refusal{.code = ErrorCode::InvalidArgument, .message = why});
  gates_.tell(connection, Close{connection});
  forget(connection);
  step(Disconnected{connection, why});
}

void Core::on_durable(std::span<const Record> records) {
  for (const Record& record : records)
    if (const auto* event = std::get_if<proto::JobEvent>(&record)) gates_.publish(*event);
  keeper_.on_durable(records);
}

// The data of a run that goes on after a restart is made known beside.
void Core::open_feed(OpenFeed& feed) {
  if (!feeds_.open(feed)) return;
  planning_->open(feed.job, std::move(*feed.submission), feed.microbatch_size,
                  [this, job = feed.job](Status opened) {
                    inbox_.leave([this, job, opened = std::move(opened)] {
                      if (feeds_.on_opened(job, opened)) return;
                      options_.log("error data_not_opened job=" + std::to_string(job) + " what=\"" +
                                   opened.error().message + "\"");
                    });
                  });
}

namespace {
// As it is stored and planned from now on, which is where it is encoded.
proto::Encoded<proto::SubmitJob> as_checked(proto::SubmitJob submission, const PlanReply& found,
                                            const std::string& submitter) {
  submission.compresses = found.compresses;
  submission.arithmetic = found.arithmetic;
  submission.skips_steps = found.skips_steps;
  submission.peer_minor = found.peer_minor;
  submission.serves = found.serves;
  submission.submitter = submitter;
  return proto::with_bytes(proto::Encoded<proto::SubmitJob>(std::move(submission)));
}
}  // namespace

// Until it was looked at, nothing else is taken from who sent it.
void Core::check(CheckSubmission& request) {
  uint64_t size = 0;
  if (const auto taken = taken_.extract(request.connection)) size = taken.mapped();
  const std::string submitter = connections_[request.connection];
  planning_->check(std::move(request),
                   [this, size, submitter](const CheckSubmission& asked, Result<PlanReply> reply) {
                     SubmissionChecked event{asked.connection, asked.submission, {}};
                     if (reply)
                       event.submission = as_checked(*asked.submission, *reply, submitter);
                     else
                       event.verdict = fail(reply.error());
                     inbox_.leave([this, size, event = std::move(event)] {
                       if (connections_.contains(event.connection)) taken_[event.connection] += size;
                       step(event);
                     });
                   });
}

void Core::carry_out(Effect& effect) {
  std::visit(
      Overloaded{
          [&](Send& e) {
            keeper_.on_sent(e);
            const ConnectionId to = e.connection;
            gates_.tell(to, std::move(e));
          },
          [&](Admit& e) { gates_.tell(e.connection, e); },
          [&](Close& e) {
            forget(e.connection);
            gates_.tell(e.connection, e);
          },
          [&](CloseAll& e) { gates_.tell_all(e); },
          [&](CheckSubmission& e) { check(e); },
          [&](StartPlanning& e) {
            const proto::JobNumber job = e.job;
            const proto::PlanVersion version = e.plan_version;
            planning_->plan(std::move(e), [this, job, version](auto plan) {
              inbox_.leave([this, event = PlanningDone{job, version, std::move(plan)}] { step(event); });
            });
          },
          [&](Reconsider& e) {
            const proto::JobNumber job = e.request.job;
            const proto::PlanVersion version = e.request.plan_version;
            planning_->reconsider(std::move(e), [this, job, version](auto other) {
              inbox_.leave([this, event = Reconsidered{job, version, std::move(other)}] { step(event); });
            });
          },
          [&](OpenFeed& e) { open_feed(e); },
          [&](KeepTransient& e) { keeper_.keep_transient(std::move(e)); },
          [&](CloseFeed& e) { feeds_.close(e.job); },
          [&](GrantRelay& e) { gates_.grant(e.ticket); },
          [&](RevokeRelay& e) { gates_.revoke(e.ticket); },
          [&](ForgetJob& e) {
            feeds_.forget(e.job);
            planning_->end(e.job);
          },
          [&](AnswerFromStore& e) { answer(e.connection, answer_from_store(*store_, e)); },
          [&](SendJobs& e) {
            const ConnectionId to = e.connection;
            answer(to, list_jobs(*store_, std::move(e)));
          },
          [&](ReopenJob& e) {
            step(JobReopened{e.connection, reopen(*store_, e)});
          },
          [&](VerifyBlobs& e) { keeper_.verify(std::move(e)); },
          [&](KeepBlobs& e) { keeper_.make_durable(std::move(e)); },
          [&](PublishPeers& e) { gates_.set_peers(std::move(e.peers)); },
          [&](PublishServed& e) { publish_served(e); },
          [&](SendEvents& e) { send_events(e); },
          [&](Log& e) { options_.log(e.line); },
      },
      effect);
}

void Core::answer(ConnectionId connection, proto::Message message) {
  gates_.tell(connection, Send{connection, std::make_shared<const proto::Message>(std::move(message))});
}

void Core::send_events(const SendEvents& request) {
  const bool is_open = broker_.status(request.request.job).has_value();
  std::visit(Overloaded{
                 [&](EventsPage&& page) { gates_.tell(request.connection, std::move(page)); },
                 [&](proto::Refusal&& refusal) { answer(request.connection, std::move(refusal)); },
             },
             events_page(*store_, request, is_open));
}

void Core::collect_garbage() {
  const Now at = now();
  if (!keeper_.collection_is_due(at.monotonic)) return;
  if (options_.keep) forget_ended(at.unix_ms);
  keeper_.collect(at.monotonic, broker_.referenced_blobs(),
                  store_->blobs_of_ended(BlobKeeper::resumable_since(at.unix_ms)));
}

void Core::forget_ended(int64_t unix_ms) {
  const int64_t keep = std::chrono::duration_cast<std::chrono::milliseconds>(*options_.keep).count();
  const auto forgotten = store_->forget_ended(unix_ms - keep, /*tries=*/false);
  if (!forgotten)
    options_.log("warning jobs_not_forgotten reason=\"" + forgotten.error().message + "\"");
  else if (!forgotten->jobs.empty())
    options_.log("info jobs_forgotten count=" + std::to_string(forgotten->jobs.size()) + " first=" +
                 std::to_string(forgotten->jobs.front()) + " last=" + std::to_string(forgotten->jobs.back()));
}

// ---- for whoever watches

// Beside other work: it reads the folder of blobs.
void Core::look_at_disk() {
  if (!options_.look_at_disk || !disk_.begin_look(now().monotonic)) return;
  on_disk([this, began = now().monotonic] {
    const DiskState disk = options_.look_at_disk();
    inbox_.leave([this, began, disk] {
      if (const std::string line = disk_.end_look(now().monotonic, began, disk); !line.empty())
        options_.log(line);
    });
  });
}

// ---- what desks want

void Core::send(uint32_t gate, std::shared_ptr<const ToGate> message) {
  socket_.send(gate, std::move(message));
}

void Core::publish(std::shared_ptr<const Published> value) { socket_.publish(std::move(value)); }

void Core::on_disk(std::function<void()> work) { disk_thread_->post(std::move(work)); }

void Core::on_verified(const BlobsVerified& verified) {
  inbox_.leave([this, verified] { step(verified); });
}

void Core::on_kept(const BlobsKept& kept) {
  inbox_.leave([this, kept] { step(kept); });
}

void Core::on_line(const std::string& line) { options_.log(line); }

}  // namespace weft::broker
