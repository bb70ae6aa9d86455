#include "broker/service/door.h"

#include <array>
#include <atomic>
#include <map>
#include <thread>
#include <utility>

#include "base/printable.h"
#include "broker/service/served_models.h"
#include "net/loop.h"
#include "net/worker.h"
#include "web/api.h"

namespace weft::broker {

namespace {

constexpr Duration kTick = std::chrono::seconds(1);
// Of what entries have told and the door has not looked at: tokens, and the others that are told beside them.
constexpr size_t kUnreadMax = size_t{1} << 22;

uint64_t random_number() {
  std::array<uint8_t, 8> bytes{};
  security::fill_random(bytes);
  uint64_t number = 0;
  for (const uint8_t byte : bytes) number = number << 8 | byte;
  return number >> 2;  // there is room to count up
}

size_t weight_of(const proto::ServeProgress& progress) {
  size_t weight = 16;
  for (const proto::ServedToken& token : progress.tokens) weight += 2 + token.alternatives.size();
  return weight;
}

// Errors: of the tokenizer, in words for whoever asks.
Result<serve::TextModel> text_model(const ServedJob& job) {
  serve::TextModel model{
      .name = job.model.name, .fingerprint = job.model.fingerprint, .created = job.created};
  if (!job.tokenizer_json.empty()) {
    auto tokenizer = text::parse_tokenizer_json(job.tokenizer_json);
    if (!tokenizer) return fail(tokenizer.error().within("its tokenizer"));
    model.tokenizer = std::move(*tokenizer);
  }
  if (model.tokenizer.vocabulary_size() > job.model.vocabulary)
    return fail(ErrorCode::InvalidArgument,
                "its tokenizer has " + std::to_string(model.tokenizer.vocabulary_size()) +
                    " tokens, the model only " + std::to_string(job.model.vocabulary));
  if (!job.model.chat_template.empty()) {
    WEFT_TRY(model.chat_template, text::chat_template_from(job.model.chat_template));
  }
  return model;
}

// Whether what was made for one serves the other.
bool is_same_text(const ServedJob& a, const ServedJob& b) {
  return a.model.name == b.model.name && a.model.tokenizer == b.model.tokenizer && a.created == b.created &&
         a.model.chat_template == b.model.chat_template && a.model.context == b.model.context &&
         a.model.vocabulary == b.model.vocabulary;
}

web::ApiOptions api_options(const DoorOptions& options) {
  const bool is_local = web::is_loopback(options.server.endpoint);
  web::ApiOptions api;
  api.authorize = [check = options.check, is_open = options.is_open, is_local](std::string_view token,
                                                                               web::Access access) {
    using web::Verdict;
    if (access == web::Access::Health) return Verdict::Allowed;
    // Whatever is shown: clients of this API show something even where nobody asks for it.
    if (is_local && is_open && is_open()) return Verdict::Allowed;
    if (token.empty() || !check) return Verdict::Unknown;
    const auto caller = check(token);
    if (caller) return Verdict::Allowed;
    if (caller.error().code == ErrorCode::PermissionDenied) return Verdict::Forbidden;
    return caller.error().code == ErrorCode::NotFound ? Verdict::Unknown : Verdict::Unsure;
  };
  return api;
}

}  // namespace

// Everything but the counts belongs to the door's thread, or has a lock of its own.
struct Door::Parts {
  Parts(DoorOptions begin, TellPeer tell_peer) : options(std::move(begin)), tell(std::move(tell_peer)) {}
  ~Parts();

  Status open();
  void take(const std::shared_ptr<ServedJob>& told);
  void make_ready(std::shared_ptr<const ServedJob> job);
  void take_model(const ServedJob& made_for, Result<serve::TextModel> model);
  void reopen(const AnsweringJob& job);
  void place(const AnsweringJob& job);
  void withdraw(proto::JobNumber number, const std::string& why);
  void take_progress(const PeerId& from, const proto::ServeProgress& progress);
  void tick();

  const DoorOptions options;
  const TellPeer tell;
  net::Loop loop;
  std::shared_ptr<KeptRequests> kept;
  std::shared_ptr<ServedModels> models;
  std::map<proto::JobNumber, AnsweringJob> jobs;
  std::atomic<size_t> unread = 0, dropped = 0;  // of what entries tell
  std::unique_ptr<net::Loop::Timer> timer;
  std::unique_ptr<web::Server> server;
  net::Worker reading;
  std::jthread thread;
};

Status Door::Parts::open() {
  const web::ServerOptions& listen = options.server;
  if (!web::is_loopback(listen.endpoint) && listen.certificate_file.empty())
    return fail(ErrorCode::InvalidArgument,
                to_string(listen.endpoint) + " can be reached from other machines: it needs a certificate");
  kept = options.requests.empty() ? std::make_shared<KeptRequests>(nullptr, options.log)
                                  : KeptRequests::open(options.requests, options.log);
  models = std::make_shared<ServedModels>([this] { return loop.now(); }, *kept);
  WEFT_TRY(server, web::Server::start(listen, web::make_api(models, api_options(options))));
  timer = loop.after(kTick, [this] { tick(); });
  thread = std::jthread([this] { loop.run(); });
  return {};
}

Door::Parts::~Parts() {
  server.reset();
  loop.stop();
  if (thread.joinable()) thread.join();
}

void Door::Parts::take(const std::shared_ptr<ServedJob>& told) {
  const AnsweringJob& known = jobs[told->job];
  // While nothing is planned the core knows its name alone.
  if (known.job && told->model.context == 0 && told->model.name == known.job->model.name)
    told->model = known.job->model;
  const bool is_known = known.job && is_same_text(*known.job, *told);
  if (!is_known) {
    withdraw(told->job, "'" + told->model.name + "' is another model now");
    make_ready(std::make_shared<const ServedJob>(*told));
  }
  told->tokenizer_json.clear();
  AnsweringJob& job = jobs[told->job];
  job.job = told;
  place(job);
  models->put(job);
}

// Where there is a plan: without one nobody knows how many tokens the model has.
void Door::Parts::make_ready(std::shared_ptr<const ServedJob> job) {
  if (job->model.context == 0 || job->model.vocabulary == 0) return;
  reading.post([this, job = std::move(job)] {
    auto model = text_model(*job);
    loop.post([this, job, model = std::move(model)]() mutable { take_model(*job, std::move(model)); });
  });
}

void Door::Parts::take_model(const ServedJob& made_for, Result<serve::TextModel> model) {
  const auto found = jobs.find(made_for.job);
  if (found == jobs.end() || !is_same_text(*found->second.job, made_for)) return;
  AnsweringJob& job = found->second;
  if (model) {
    job.work = std::make_shared<RemoteWork>(
        RemoteRequests(made_for, random_number(), tell, options.log, options.remote));
    job.text = std::make_shared<serve::TextService>(
        std::move(*model), std::make_unique<RemoteSource>(loop, job.work),
        options.requests.empty() ? nullptr : kept->of(job.job->job));
  } else {
    job.fault = printable(model.error().message);
    options.log("error not_served job=" + std::to_string(made_for.job) + " what=\"" + job.fault + "\"");
  }
  models->put(job);  // first: who asks for a stream finds it here, or among those that are to come
  reopen(job);
  place(job);
}

// What a broker before this one was asked: it can be read here before it is forgotten there.
void Door::Parts::reopen(const AnsweringJob& job) {
  if (!job.work) return;
  for (serve::KeptRequest& kept_one : kept->to_open(job.job->job)) {
    auto again = job.text->reopen(kept_one);
    kept->opened(kept_one.id);
    if (!again) kept->of(job.job->job)->ended(kept_one.id);
    if (!again) continue;
    const MutexLock lock(job.work->mutex);
    job.work->requests.reopen(kept_one.number, std::move(kept_one.request), std::move(again->listener),
                              std::move(again->begun), loop.now());
  }
}

void Door::Parts::place(const AnsweringJob& job) {
  if (!job.work) return;
  job.text->set_fingerprint(job.job->model.fingerprint);
  const MutexLock lock(job.work->mutex);
  job.work->requests.place(*job.job, loop.now());
}

void Door::Parts::withdraw(proto::JobNumber number, const std::string& why) {
  const auto node = jobs.extract(number);
  if (node && node.mapped().work) {
    const MutexLock lock(node.mapped().work->mutex);
    node.mapped().work->requests.close({ErrorCode::Unavailable, why});
  }
  models->remove(number);
}

void Door::Parts::take_progress(const PeerId& from, const proto::ServeProgress& progress) {
  const auto found = jobs.find(progress.run);
  if (found == jobs.end() || !found->second.work) return;
  const MutexLock lock(found->second.work->mutex);
  found->second.work->requests.progress(from, progress, loop.now());
}

void Door::Parts::tick() {
  kept->tick(loop.now());
  for (const auto& [number, job] : jobs) {
    if (!job.work) continue;
    reopen(job);
    const MutexLock lock(job.work->mutex);
    job.work->requests.tick(loop.now());
  }
  models->forget();
  if (const size_t lost = dropped.exchange(0); lost > 0)
    options.log("warning serve_progress_dropped count=" + std::to_string(lost));
  timer = loop.after(kTick, [this] { tick(); });
}

Result<std::unique_ptr<Door>> Door::start(DoorOptions options, TellPeer tell) {
  if (!options.log) options.log = [](const std::string&) {};
  auto parts = std::make_unique<Parts>(std::move(options), std::move(tell));
  WEFT_TRY_STATUS(parts->open());
  return std::unique_ptr<Door>(new Door(std::move(parts)));
}

Door::Door(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
Door::~Door() = default;

net::Endpoint Door::endpoint() const { return parts_->server->endpoint(); }
void Door::stop(Duration deadline) { parts_->server->stop(deadline); }

void Door::on_served(const ServedJob& job) {
  parts_->loop.post([parts = parts_.get(), told = std::make_shared<ServedJob>(job)] { parts->take(told); });
}

void Door::on_withdrawn(proto::JobNumber job) {
  parts_->loop.post([parts = parts_.get(), job] {
    parts->kept->withdraw(job);
    parts->withdraw(job, "the job that served it has ended");
  });
}

// What is dropped here is asked for again.
void Door::on_progress(const PeerId& from, const proto::ServeProgress& progress) {
  Parts& parts = *parts_;
  const size_t weight = weight_of(progress);
  if (parts.unread.fetch_add(weight) + weight > kUnreadMax) {
    parts.unread -= weight;
    ++parts.dropped;
    return;
  }
  parts.loop.post([&parts, from, progress, weight] {
    parts.unread -= weight;
    parts.take_progress(from, progress);
  });
}

}  // namespace weft::broker
