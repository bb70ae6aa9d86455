#include "broker/service/core.h"

#include <algorithm>
#include <chrono>

#include "base/overloaded.h"
#include "broker/jobs/answers.h"
#include "broker/service/token_judge.h"
#include "broker/service/wall_clock.h"
#include "proto/codec/codec.h"

namespace weft::broker {

namespace {

constexpr Duration kTick = std::chrono::milliseconds(500);
constexpr size_t kEventsAtOnce = 500;
constexpr size_t kEventBytesAtOnce = 1 << 20;  // of their texts, about
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
      bus_(bus),
      on_fatal_(std::move(on_fatal)),
      socket_(bus),
      broker_(options_.broker, state),
      job_feeds_(feeds),
      blobs_(blobs),
      leases_(leases),
      peers_(std::make_shared<const Published>(proto::PeerList{})),
      wake_(std::make_unique<GateSocket>(bus_, "planner")),
      disk_thread_(std::make_unique<net::Worker>()),
      served_thread_(std::make_unique<net::Worker>()),
      planning_(std::make_unique<Planning>(options_.planning, blobs, feeds)) {
  remove_old_files();
}

Core::~Core() {
  stopping_ = true;
  from_worker([] {});
  if (thread_.joinable()) thread_.join();
  planning_.reset();
  disk_thread_.reset();
  served_thread_.reset();
}

void Core::from_worker(std::function<void()> work) {
  {
    const MutexLock lock(inbox_mutex_);
    inbox_.push_back(std::move(work));
  }
  const MutexLock lock(wake_mutex_);
  wake_->send({.what = Wake{}});
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
      if (!gates_.empty()) {
        look_at_tokens();
        step(Tick{heard_until()});
      }
      collect_garbage();
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
                 [&](const GateReady&) { on_gate_ready(message.gate); },
                 [&](const Introduced& e) {
                   taken_[e.connection] += message.size;
                   introduce(e);
                 },
                 [&](Received e) {
                   taken_[e.connection] += message.size;
                   look_for_damage(e);
                   if (const auto* report = std::get_if<proto::CheckpointReport>(e.message.get()))
                     e.blobs_missing = static_cast<uint32_t>(
                         std::count_if(report->tensors.begin(), report->tensors.end(),
                                       [&](const auto& tensor) { return !blobs_.is_here(tensor.sha256); }));
                   step(e);
                 },
                 [&](const Disconnected& e) {
                   connections_.erase(e.connection);
                   step(e);
                 },
                 [&](const RelayWaiting& e) { step(e); },
                 [&](const Hearing& hearing) {
                   for (const Heard& e : hearing.peers) step(e);
                   gates_[message.gate] = hearing.until;
                 },
                 [&](const Wake&) {
                   std::deque<std::function<void()>> work;
                   {
                     const MutexLock lock(inbox_mutex_);
                     work.swap(inbox_);
                   }
                   for (auto& item : work) item();
                 },
             },
             message.what);
}

// A gate that comes after things have begun is told of them.
void Core::on_gate_ready(uint32_t gate) {
  gates_[gate] = now().monotonic;
  const auto tell = [&](ToGate message) {
    socket_.send(gate, std::make_shared<const ToGate>(std::move(message)));
  };
  for (const auto& [job, feed] : feeds_) tell(feed);
  for (const proto::Secret& ticket : tickets_) tell(GrantRelay{ticket});
  for (const auto& [job, entry] : entries_) tell(entry);
  socket_.publish(peers_);
}

// Each gate has told of all that came until then.
std::optional<Instant> Core::heard_until() const {
  std::optional<Instant> least;
  for (const auto& [gate, until] : gates_) least = std::min(least.value_or(until), until);
  return least;
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
  connections_[event.connection] = {.who = event.who};
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
      publish_events(part.records);
      refer_to_blobs(part.records);
      for (Effect& effect : part.effects) carry_out(effect);
    }
  }
  for (const auto& [connection, size] : std::exchange(taken_, {}))
    to_gate(connection, Taken{connection, size});
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
  to_gate(connection, Send{connection, std::make_shared<const proto::Message>(proto::Refusal{
                                           .code = ErrorCode::InvalidArgument, .message = why})});
  to_gate(connection, Close{connection});
  connections_.erase(connection);
  step(Disconnected{connection, why});
}

void Core::publish_events(std::span<const Record> records) {
  for (const Record& record : records)
    if (const auto* event = std::get_if<proto::JobEvent>(&record))
      socket_.publish(std::make_shared<const Published>(*event));
}

void Core::say_feed(proto::JobNumber job, ToGate what) {
  feeds_[job] = what;
  to_gates(std::move(what));
}

// The data of a run that goes on after a restart is made known beside; what peers ask for meanwhile waits.
// The run may be placed again meanwhile, under another key.
void Core::open_feed(OpenFeed& feed) {
  const auto under_way = opening_.find(feed.job);
  if (under_way == opening_.end() && (!feed.submission || job_feeds_.find(feed.job)))
    return say_feed(feed.job, FeedOpened{feed.job, feed.data_key});
  say_feed(feed.job, FeedExpected{feed.job, feed.data_key});
  if (under_way != opening_.end()) {
    under_way->second = feed.data_key;
    return;
  }
  opening_[feed.job] = feed.data_key;
  planning_->open(feed.job, std::move(*feed.submission), feed.microbatch_size,
                  [this, job = feed.job](Status opened) {
                    from_worker([this, job, opened = std::move(opened)] {
                      const auto at = opening_.find(job);
                      if (at == opening_.end()) return;  // the job is over
                      const proto::Secret key = at->second;
                      opening_.erase(at);
                      if (!feeds_.contains(job)) return;  // closed meanwhile
                      if (opened) return say_feed(job, FeedOpened{job, key});
                      options_.log("error data_not_opened job=" + std::to_string(job) + " what=\"" +
                                   opened.error().message + "\"");
                      feeds_.erase(job);
                      to_gates(CloseFeed{job});
                    });
                  });
}

namespace {
// As it is stored and planned from now on, which is where it is encoded.
proto::Encoded<proto::SubmitJob> as_checked(proto::SubmitJob submission, const PlanReply& found) {
  submission.compresses = found.compresses;
  submission.arithmetic = found.arithmetic;
  submission.skips_steps = found.skips_steps;
  submission.peer_minor = found.peer_minor;
  submission.serves = found.serves;
  return proto::with_bytes(proto::Encoded<proto::SubmitJob>(std::move(submission)));
}
}  // namespace

// Until it was looked at, nothing else is taken from who sent it.
void Core::check(CheckSubmission& request) {
  uint64_t size = 0;
  if (const auto taken = taken_.extract(request.connection)) size = taken.mapped();
  planning_->check(std::move(request), [this, size](const CheckSubmission& asked, Result<PlanReply> reply) {
    SubmissionChecked event{asked.connection, asked.submission, {}};
    if (reply)
      event.submission = as_checked(*asked.submission, *reply);
    else
      event.verdict = fail(reply.error());
    from_worker([this, size, event = std::move(event)] {
      if (connections_.contains(event.connection)) taken_[event.connection] += size;
      step(event);
    });
  });
}

void Core::to_gate(ConnectionId connection, ToGate message) {
  socket_.send(gate_of(connection), std::make_shared<const ToGate>(std::move(message)));
}

void Core::to_gates(ToGate message) {
  const auto shared = std::make_shared<const ToGate>(std::move(message));
  for (const auto& [gate, until] : gates_) socket_.send(gate, shared);
}

void Core::carry_out(Effect& effect) {
  std::visit(
      Overloaded{
          [&](Send& e) {
            note_what_it_may_fetch(e);
            const ConnectionId to = e.connection;
            to_gate(to, std::move(e));
          },
          [&](Admit& e) { to_gate(e.connection, e); },
          [&](Close& e) {
            connections_.erase(e.connection);
            to_gate(e.connection, e);
          },
          [&](CloseAll& e) { to_gates(e); },
          [&](CheckSubmission& e) { check(e); },
          [&](StartPlanning& e) {
            const proto::JobNumber job = e.job;
            const proto::PlanVersion version = e.plan_version;
            planning_->plan(std::move(e), [this, job, version](auto plan) {
              from_worker([this, event = PlanningDone{job, version, std::move(plan)}] { step(event); });
            });
          },
          [&](Reconsider& e) {
            const proto::JobNumber job = e.request.job;
            const proto::PlanVersion version = e.request.plan_version;
            planning_->reconsider(std::move(e), [this, job, version](auto other) {
              from_worker([this, event = Reconsidered{job, version, std::move(other)}] { step(event); });
            });
          },
          [&](OpenFeed& e) { open_feed(e); },
          [&](KeepTransient& e) {
            transient_kept_ = e.blobs;
            disk_thread_->post([this, kept = std::move(e.blobs), young = e.young] {
              (void)blobs_.keep_transient({kept.begin(), kept.end()},
                                          std::chrono::duration_cast<std::chrono::milliseconds>(young));
            });
          },
          [&](CloseFeed& e) {
            feeds_.erase(e.job);
            to_gates(e);
          },
          [&](GrantRelay& e) {
            tickets_.insert(e.ticket);
            to_gates(e);
          },
          [&](RevokeRelay& e) {
            tickets_.erase(e.ticket);
            to_gates(e);
          },
          [&](ForgetJob& e) {
            opening_.erase(e.job);
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
          [&](VerifyBlobs& e) { verify_blobs(e); },
          [&](PublishPeers& e) {
            peers_ = std::make_shared<const Published>(std::move(e.peers));
            socket_.publish(peers_);
          },
          [&](PublishServed& e) { publish(e); },
          [&](SendEvents& e) { send_events(e); },
          [&](Log& e) { options_.log(e.line); },
      },
      effect);
}

void Core::answer(ConnectionId connection, proto::Message message) {
  to_gate(connection, Send{connection, std::make_shared<const proto::Message>(std::move(message))});
}

// A page of past events from the store. New ones reach the client from its gate, which has them all from the
// event stream and is told with the last page where to go on.
void Core::send_events(const SendEvents& request) {
  const auto [job, from, follow] = request.request;
  const auto submitter = submitter_of(*store_, job);
  if (!submitter || !*submitter || !may_read(request.whose, **submitter))
    return answer(request.connection, proto::Refusal{.code = ErrorCode::NotFound,
                                                     .message = "there is no job " + std::to_string(job) +
                                                                " of yours here: weft jobs lists them"});
  auto events = store_->events(job, std::max<uint64_t>(1, from), kEventsAtOnce);
  if (!events)
    return answer(request.connection,
                  proto::Refusal{.code = events.error().code, .message = events.error().message});
  bool has_more = events->size() == kEventsAtOnce;
  size_t bytes = 0, count = 0;
  for (; count < events->size() && bytes < kEventBytesAtOnce; ++count) bytes += (*events)[count].text.size();
  has_more = has_more || count < events->size();
  events->resize(count);
  EventsPage page{.connection = request.connection, .job = job, .events = std::move(*events)};
  const uint64_t last = page.events.empty() ? std::max<uint64_t>(1, from) - 1 : page.events.back().sequence;
  const bool has_ended = !broker_.status(job);
  const bool is_end = !page.events.empty() && page.events.back().kind == proto::JobEventKind::State &&
                      page.events.back().state >= proto::JobState::Finished;
  if (has_more)
    page.rest = proto::GetEvents{.job = job, .from_sequence = last + 1, .follow = follow};
  else if (follow && !has_ended && !is_end)
    page.follows_after = last;
  to_gate(request.connection, std::move(page));
}

}  // namespace weft::broker
