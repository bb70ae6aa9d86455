#include "broker/service/kept_requests.h"

#include <algorithm>
#include <chrono>
#include <system_error>

#include "broker/service/wall_clock.h"

namespace weft::broker {

namespace {

constexpr Duration kFoldEvery = std::chrono::seconds(10);

StoredRequest stored(proto::JobNumber job, serve::KeptRequest kept) {
  const serve::SamplingOptions& sampling = kept.request.sampling;
  StoredRequest row{.id = std::move(kept.id),
                    .request = {.run = job,
                                .request = kept.number,
                                .tokens = std::move(kept.request.prompt),
                                .tokens_max = static_cast<uint64_t>(kept.request.tokens_max),
                                .temperature = sampling.temperature,
                                .top_p = sampling.top_p,
                                .top_k = static_cast<uint64_t>(sampling.top_k),
                                .seed = sampling.seed,
                                .ends = std::move(kept.request.ends)},
                    .created = kept.created,
                    .is_chat = kept.kind == web::ApiKind::Chat,
                    .includes_usage = kept.includes_usage,
                    .stops = std::move(kept.stops),
                    .once_name = std::move(kept.once.name),
                    .once_asked = std::move(kept.once.asked)};
  if (sampling.alternatives >= 0) row.request.alternatives = static_cast<uint32_t>(sampling.alternatives);
  return row;
}

serve::KeptRequest kept(StoredRequest row) {
  proto::ServeRequest& request = row.request;
  return {
      .id = std::move(row.id),
      .created = row.created,
      .kind = row.is_chat ? web::ApiKind::Chat : web::ApiKind::Completion,
      .includes_usage = row.includes_usage,
      .stops = std::move(row.stops),
      .number = request.request,
      .request = {.prompt = std::move(request.tokens),
                  .tokens_max = static_cast<int64_t>(request.tokens_max),
                  .sampling = {.temperature = request.temperature,
                               .top_p = request.top_p,
                               .top_k = static_cast<int64_t>(request.top_k),
                               .seed = request.seed,
                               .alternatives = request.alternatives ? int64_t{*request.alternatives} : -1},
                  .ends = std::move(request.ends)},
      .once = {std::move(row.once_name), std::move(row.once_asked)}};
}

Metrics declared_metrics() {
  Metrics metrics;
  metrics.declare_gauge("weft_serve_requests_kept", "Streams that would outlive this process.");
  metrics.declare_counter("weft_serve_requests_not_kept_total",
                          "Streams that are lost with this process: the disk or a bound was in the way.");
  return metrics;
}

// With what SQLite keeps beside it.
bool put_aside(const std::filesystem::path& file) {
  std::error_code error;
  for (const char* more : {"-wal", "-shm"}) std::filesystem::remove(file.string() + more, error);
  std::filesystem::rename(file, file.string() + ".damaged", error);
  return !error;
}

}  // namespace

// What a job's service writes down.
class KeptRequests::OfJob final : public serve::RequestKeeper {
 public:
  OfJob(std::shared_ptr<KeptRequests> all, proto::JobNumber job) : all_(std::move(all)), job_(job) {}
  void keep(serve::KeptRequest request, std::function<void()> done) override {
    all_->keep(job_, std::move(request), std::move(done));
  }
  void ended(const std::string& id) override { all_->end(id); }

 private:
  const std::shared_ptr<KeptRequests> all_;
  const proto::JobNumber job_;
};

std::shared_ptr<KeptRequests> KeptRequests::open(const std::filesystem::path& file, Log log,
                                                 const RequestStoreOptions& options) {
  auto store = open_request_store(file, options);
  if (!store && store.error().code == ErrorCode::Corrupted && put_aside(file)) {
    log("warning requests_damaged file=\"" + file.string() +
        "\" what=\"put aside; streams of before are lost\"");
    store = open_request_store(file, options);
  }
  if (!store) log("warning requests_not_kept what=\"" + store.error().message + "\"");
  return std::make_shared<KeptRequests>(store ? std::move(*store) : nullptr, std::move(log));
}

KeptRequests::KeptRequests(std::unique_ptr<RequestStore> store, Log log)
    : log_(std::move(log)), store_(std::move(store)), metrics_(declared_metrics()) {
  load();
  worker_ = std::make_unique<net::Worker>();
  const MutexLock lock(mutex_);
  write_soon();
}

KeptRequests::~KeptRequests() {
  worker_.reset();
  write();
}

std::shared_ptr<serve::RequestKeeper> KeptRequests::of(proto::JobNumber job) {
  return std::make_shared<OfJob>(shared_from_this(), job);
}

// An end in the future is a clock's that was set back since.
void KeptRequests::load() {
  if (!store_) return;
  auto loaded = store_->load();
  if (!loaded) return log_("warning requests_not_read what=\"" + loaded.error().message + "\"");
  if (loaded->damaged > 0)
    log_("warning requests_damaged count=" + std::to_string(loaded->damaged) + " what=\"they are left out\"");
  const int64_t now = unix_ms();
  const MutexLock lock(mutex_);
  for (StoredRequest& row : loaded->requests) {
    const std::string id = row.id;
    const auto ended = row.ended_unix_ms;
    const proto::JobNumber job = row.request.run;
    kept_[id] = {row.request.tokens.size(), ended};
    tokens_ += row.request.tokens.size();
    if (ended) ended_.emplace(*ended, id);
    const bool is_over = ended && (now - *ended > kKeptMs || *ended > now);
    if (is_over || kept_.size() > kRequestsMax || tokens_ > kTokensMax)
      forget(id);
    else
      earlier_[id] = {.job = job, .request = kept(std::move(row)), .is_wanted = !ended};
  }
}

// ---- what is asked now

void KeptRequests::keep(proto::JobNumber job, serve::KeptRequest request, std::function<void()> done) {
  {
    const MutexLock lock(mutex_);
    const size_t tokens = request.request.prompt.size();
    const bool is_sound = store_ && !is_failing_ && request.request.tokens_max >= 0;
    if (is_sound && !kept_.contains(request.id) && make_room(tokens)) {
      kept_[request.id] = {tokens, std::nullopt};
      tokens_ += tokens;
      waiting_[request.id] = {std::nullopt, std::exchange(done, nullptr)};
      change(stored(job, std::move(request)));
    } else {
      metrics_.add("weft_serve_requests_not_kept_total");
    }
  }
  if (done) done();
}

void KeptRequests::end(const std::string& id) {
  const MutexLock lock(mutex_);
  const auto found = kept_.find(id);
  if (found == kept_.end() || found->second.ended_unix_ms) return;
  const int64_t now = unix_ms();
  found->second.ended_unix_ms = now;
  ended_.emplace(now, id);
  change(RequestEnded{id, now});
}

bool KeptRequests::make_room(size_t tokens) {
  while ((kept_.size() >= kRequestsMax || tokens_ + tokens > kTokensMax) && !ended_.empty())
    forget(std::string(ended_.begin()->second));
  return kept_.size() < kRequestsMax && tokens_ + tokens <= kTokensMax;
}

void KeptRequests::forget(const std::string& id) {
  const auto node = kept_.extract(id);
  if (!node) return;
  tokens_ -= node.mapped().tokens;
  if (const auto ended = node.mapped().ended_unix_ms) ended_.erase({*ended, id});
  earlier_.erase(id);
  was_removed_ = true;
  change(RequestForgotten{id});
}

// ---- to the disk

// One write at a time: what comes meanwhile is the next one's.
void KeptRequests::change(RequestChange change) {
  changes_.push_back(std::move(change));
  write_soon();
}

void KeptRequests::write_soon() {
  if (is_writing_ || !worker_ || !store_ || changes_.empty()) return;
  is_writing_ = true;
  worker_->post([this] { write(); });
}

void KeptRequests::write() {
  std::vector<RequestChange> changes;
  {
    const MutexLock lock(mutex_);
    changes.swap(changes_);
    is_writing_ = false;
  }
  if (!store_ || changes.empty()) return;
  const Status written = store_->write(changes);
  for (const auto& done : settle(std::move(changes), written)) done();
}

// Of a write that failed the removals are tried again; the requests are served without.
std::vector<std::function<void()>> KeptRequests::settle(std::vector<RequestChange> changes,
                                                        const Status& written) {
  std::vector<std::function<void()>> done;
  std::vector<RequestChange> again;
  const MutexLock lock(mutex_);
  for (RequestChange& change : changes) {
    if (const auto* request = std::get_if<StoredRequest>(&change)) {
      if (auto node = waiting_.extract(request->id)) done.push_back(std::move(node.mapped().done));
      if (!written) lose(request->id);
    } else if (!written) {
      again.push_back(std::move(change));
    }
  }
  if (!written && !is_failing_) log_("warning requests_not_kept what=\"" + written.error().message + "\"");
  is_failing_ = !written;
  changes_.insert(changes_.begin(), std::make_move_iterator(again.begin()),
                  std::make_move_iterator(again.end()));
  return done;
}

void KeptRequests::lose(const std::string& id) {
  metrics_.add("weft_serve_requests_not_kept_total");
  const auto node = kept_.extract(id);
  if (!node) return;
  tokens_ -= node.mapped().tokens;
  if (const auto ended = node.mapped().ended_unix_ms) ended_.erase({*ended, id});
}

void KeptRequests::fold() {
  if (const Status folded = store_->fold(); !folded)
    log_("warning requests_not_folded what=\"" + folded.error().message + "\"");
}

void KeptRequests::tick(Instant now) {
  for (const auto& done : late(now)) done();
  const MutexLock lock(mutex_);
  if (began_ == Instant{}) began_ = now;
  const int64_t wall = unix_ms();
  while (!ended_.empty() && wall - ended_.begin()->first > kKeptMs)
    forget(std::string(ended_.begin()->second));
  while (!earlier_.empty() && now - began_ > kUnclaimed) forget(std::string(earlier_.begin()->first));
  if (is_failing_) change(RequestForgotten{});  // of nothing: the disk is tried again
  if (!store_ || !was_removed_ || now - folded_ <= kFoldEvery) return;
  was_removed_ = false;
  folded_ = now;
  worker_->post([this] { fold(); });
}

// What the disk takes too long for.
std::vector<std::function<void()>> KeptRequests::late(Instant now) {
  std::vector<std::function<void()>> late;
  const MutexLock lock(mutex_);
  for (auto at = waiting_.begin(); at != waiting_.end();) {
    if (!at->second.since) at->second.since = now;
    if (now - *at->second.since <= kPatience) {
      ++at;
      continue;
    }
    late.push_back(std::move(at->second.done));
    at = waiting_.erase(at);
  }
  return late;
}

// ---- what an earlier process was asked

std::vector<serve::KeptRequest> KeptRequests::to_open(proto::JobNumber job) const {
  std::vector<serve::KeptRequest> found;
  const MutexLock lock(mutex_);
  for (const auto& [id, earlier] : earlier_)
    if (earlier.job == job && earlier.is_wanted) found.push_back(earlier.request);
  return found;
}

void KeptRequests::opened(const std::string& id) {
  const MutexLock lock(mutex_);
  earlier_.erase(id);
}

bool KeptRequests::want(const std::string& id) {
  const MutexLock lock(mutex_);
  const auto found = earlier_.find(id);
  if (found == earlier_.end()) return false;
  return found->second.is_wanted = true;
}

bool KeptRequests::want_once(const std::string& name) {
  const MutexLock lock(mutex_);
  const auto found =
      std::ranges::find_if(earlier_, [&](const auto& one) { return one.second.request.once.name == name; });
  if (found == earlier_.end()) return false;
  return found->second.is_wanted = true;
}

void KeptRequests::withdraw(proto::JobNumber job) {
  const MutexLock lock(mutex_);
  std::vector<std::string> gone;
  for (const auto& [id, earlier] : earlier_)
    if (earlier.job == job) gone.push_back(id);
  for (const std::string& id : gone) forget(id);
}

Metrics KeptRequests::metrics() const {
  const MutexLock lock(mutex_);
  Metrics metrics = metrics_;
  metrics.set("weft_serve_requests_kept", static_cast<double>(kept_.size()));
  return metrics;
}

}  // namespace weft::broker
