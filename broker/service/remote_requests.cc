#include "broker/service/remote_requests.h"

#include <algorithm>
#include <utility>

#include "base/printable.h"
#include "proto/codec/bounds.h"
#include "serve/cache.h"

namespace weft::broker {
namespace {

using serve::Finish;

constexpr size_t kTextShown = 500;

std::string shown(std::string_view text) { return printable(text.substr(0, kTextShown)); }

// The most positions whose caches are within `positions_max`.
int64_t positions_within(int64_t positions_max, int64_t context) {
  int64_t low = 0, high = context;
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    if (serve::rounded_capacity(middle, context) <= positions_max)
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

// What may be otherwise a moment later, or where the ring is placed again.
bool is_passing(ErrorCode code) {
  return code == ErrorCode::Unavailable || code == ErrorCode::Timeout || code == ErrorCode::Cancelled ||
         code == ErrorCode::DeviceLost || code == ErrorCode::ResourceExhausted;
}

Metrics declared_metrics() {
  Metrics metrics;
  serve::declare_request_metrics(metrics);
  metrics.declare_counter("weft_serve_asked_again_total",
                          "Requests that were sent once more: to another entry, or for what was lost.");
  metrics.declare_counter("weft_serve_contradictions_total",
                          "Tokens that an entry told otherwise than before, or that cannot be.");
  metrics.declare_counter("weft_serve_strays_total",
                          "What peers told that are not the entry, or not of this plan.");
  metrics.declare_counter("weft_serve_guesses_total", "Tokens that were guessed and checked.");
  metrics.declare_counter("weft_serve_guesses_right_total", "Guesses that were drawn.");
  metrics.declare_gauge("weft_serve_placed", "1 while the model can answer.");
  metrics.declare_counter("weft_serve_passes_total", "Passes that have come round a ring.");
  metrics.declare_counter("weft_serve_rows_total", "Positions that were computed in these passes.");
  metrics.declare_gauge("weft_serve_passes_under_way", "Passes on their way round a ring.");
  metrics.declare_gauge("weft_serve_cache_positions", "Positions that caches of a ring are granted for.");
  metrics.declare_gauge("weft_serve_cache_positions_max", "Positions that a ring has memory for.");
  return metrics;
}

}  // namespace

RemoteRequests::RemoteRequests(const ServedJob& job, uint64_t first_number, TellPeer tell, Log log,
                               RemoteOptions options)
    : options_(options),
      tell_(std::move(tell)),
      log_(std::move(log)),
      job_(job.job),
      name_(job.model.name),
      context_(static_cast<int64_t>(std::min<uint64_t>(job.model.context, proto::kSequenceMax))),
      vocabulary_(static_cast<int64_t>(std::min<uint64_t>(job.model.vocabulary, INT32_MAX))),
      next_number_(first_number),
      metrics_(declared_metrics()) {}

// ---- what is taken

Status RemoteRequests::check(const serve::Request& request) const {
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  const auto number = [](int64_t value) { return std::to_string(value); };
  if (prompt == 0)
    return fail(ErrorCode::InvalidArgument, "the prompt is empty: it needs a token to start from");
  for (const int64_t token : request.prompt)
    if (token < 0 || token >= vocabulary_)
      return fail(ErrorCode::InvalidArgument,
                  "the prompt has token " + number(token) + ", the model has " + number(vocabulary_));
  if (prompt > context_)
    return fail(ErrorCode::OutOfRange,
                "the prompt has " + number(prompt) + " tokens, the model's context is " + number(context_));
  if (request.tokens_max > context_ - prompt)
    return fail(ErrorCode::OutOfRange, "a prompt of " + number(prompt) + " tokens and max_tokens of " +
                                           number(request.tokens_max) + " go beyond the model's context of " +
                                           number(context_));
  const int64_t positions = request.tokens_max < 0 ? context_ : prompt + request.tokens_max;
  if (serve::rounded_capacity(positions, context_) > positions_max_)
    return fail(ErrorCode::OutOfRange,
                "a sequence of " + number(positions) +
                    " tokens needs more memory than there is; the largest that fits has " +
                    number(positions_within(positions_max_, context_)));
  return {};
}

bool RemoteRequests::answers(Instant now) const {
  if (closed_) return false;
  return place_ || (placeless_since_ && now - *placeless_since_ < options_.without_place);
}

Status RemoteRequests::room_for(const serve::Request& request, Instant now) {
  if (closed_) return fail(*closed_);
  if (!answers(now))
    return fail(ErrorCode::Unavailable, "'" + name_ + "' cannot answer now: " + unavailable_);
  WEFT_TRY_STATUS(check(request));
  const size_t room = place_ ? at_entry_max() : 0;
  if (open_.size() >= room + options_.waiting_max)
    return fail(ErrorCode::ResourceExhausted,
                std::to_string(open_.size()) + " requests are waiting already; try again later");
  if (prompts_ + request.prompt.size() > options_.prompts_max)
    return fail(ErrorCode::ResourceExhausted, "the prompts that wait are too long together; try again later");
  return {};
}

void RemoteRequests::add(serve::Request request, serve::Listener listener, serve::TokenSource::Begun begun,
                         Instant now) {
  if (const Status room = room_for(request, now); !room) {
    metrics_.add("weft_serve_requests_total", 1, {{"finish", "failed"}, {"model", name_}});
    return listener.on_end(Finish::Failed, room);
  }
  take(next_number_, std::move(request), std::move(listener), std::move(begun), now);
  pump(now);
}

// What it is about was looked at before, by a broker that knew the same model.
void RemoteRequests::reopen(uint64_t number, serve::Request request, serve::Listener listener,
                            serve::TokenSource::Begun begun, Instant now) {
  const bool is_ours = !request.prompt.empty() && request.tokens_max >= 0 &&
                       static_cast<int64_t>(request.prompt.size()) <= context_ &&
                       request.tokens_max <= context_ - static_cast<int64_t>(request.prompt.size()) &&
                       std::ranges::all_of(request.prompt, [this](int64_t token) {
                         return token >= 0 && token < vocabulary_;
                       });
  if (closed_ || !is_ours)
    return listener.on_end(
        Finish::Failed,
        closed_ ? fail(*closed_) : fail(ErrorCode::Corrupted, "'" + name_ + "' is another model now"));
  if (!place_ && !placeless_since_) placeless_since_ = now;
  take(number, std::move(request), std::move(listener), std::move(begun), now);
  open_.rbegin()->second.was_under_way = true;
  pump(now);
}

void RemoteRequests::take(uint64_t number, serve::Request request, serve::Listener listener,
                          serve::TokenSource::Begun begun, Instant now) {
  const uint64_t id = next_number_++;
  Open& open = open_[id];
  open.id = id;
  open.number = number;
  open.tokens = request.prompt;
  const int64_t left = context_ - static_cast<int64_t>(request.prompt.size());
  open.tokens_max = request.tokens_max < 0 ? left : request.tokens_max;
  open.request = std::move(request);
  open.listener = std::move(listener);
  open.begun = std::move(begun);
  open.arrived = now;
  prompts_ += open.request.prompt.size();
}

void RemoteRequests::cancel(uint64_t id, Instant now) {
  const auto found = open_.find(id);
  if (found == open_.end()) return;
  cancel_at_entry(found->second);
  end(id, Finish::Cancelled);
  pump(now);
}

void RemoteRequests::close(const Error& why) {
  closed_ = why;
  while (!open_.empty()) {
    cancel_at_entry(open_.begin()->second);
    end(open_.begin()->first, Finish::Failed, fail(why));
  }
}

void RemoteRequests::end(uint64_t id, Finish finish, const Status& status) {
  auto node = open_.extract(id);
  Open& open = node.mapped();
  by_number_.erase(open.number);
  prompts_ -= open.request.prompt.size();
  metrics_.add("weft_serve_requests_total", 1,
               {{"finish", std::string(serve::to_string(finish))}, {"model", name_}});
  open.listener.on_end(finish, status);
}

// ---- to the entry

void RemoteRequests::place(const ServedJob& job, Instant now) {
  positions_max_ = static_cast<int64_t>(std::min<uint64_t>(job.model.positions_max, INT64_MAX));
  sequences_max_ = job.model.sequences_max;
  unavailable_ = job.place ? "" : job.unavailable;
  if (job.place == place_) return;
  if (!job.place) placeless_since_ = now;
  place_ = job.place;
  load_ = {};
  by_number_.clear();
  for (auto& [id, open] : open_) {
    if (open.is_at_entry) ++open.losses;
    if (open.spoilt_since) ++open.spoilt;
    open.spoilt_since.reset();
    open.is_at_entry = open.has_gap = false;
    open.not_before = {};
    open.tries = 0;
  }
  end_lost();
  if (last_token_ == Instant{}) last_token_ = now;
  moved_on_ = now;
  pump(now);
}

// Where there is a place a request is under way, even if it waits its turn.
void RemoteRequests::begin_all() {
  std::vector<uint64_t> unwanted, full;
  for (auto& [id, open] : open_) {
    const auto begun = std::exchange(open.begun, nullptr);
    if (begun && !begun(id))
      unwanted.push_back(id);
    else if (open.tokens_max == 0)
      full.push_back(id);
  }
  for (const uint64_t id : unwanted) end(id, Finish::Cancelled);
  for (const uint64_t id : full) end(id, Finish::Length);  // the prompt fills the context
}

// The oldest first, and no more than can wait there.
void RemoteRequests::pump(Instant now) {
  if (!place_) return;
  begin_all();
  bool has_suspect = std::ranges::any_of(
      open_, [this](const auto& one) { return one.second.is_at_entry && is_suspect(one.second); });
  for (auto& [id, open] : open_) {
    if (open.is_at_entry || open.spoilt_since || open.not_before > now) continue;
    if (has_suspect && is_suspect(open)) continue;
    if (by_number_.size() >= at_entry_max()) return;
    has_suspect = has_suspect || is_suspect(open);
    send(open, now);
    open.sent = open.heard = now;
  }
}

void RemoteRequests::send(Open& open, Instant now) {
  const serve::SamplingOptions& sampling = open.request.sampling;
  proto::ServeRequest message{.run = job_,
                              .plan_version = place_->plan_version,
                              .request = open.number,
                              .tokens = open.tokens,
                              .tokens_max = static_cast<uint64_t>(open.tokens_max) - open.drawn(),
                              .temperature = sampling.temperature,
                              .top_p = sampling.top_p,
                              .top_k = static_cast<uint64_t>(sampling.top_k),
                              .seed = sampling.seed,
                              .ends = open.request.ends};
  if (sampling.alternatives >= 0) message.alternatives = static_cast<uint32_t>(sampling.alternatives);
  if (std::exchange(open.was_sent, true)) metrics_.add("weft_serve_asked_again_total", 1, {{"model", name_}});
  open.is_at_entry = true;
  open.has_gap = false;
  open.asked = now;
  by_number_[open.number] = open.id;
  tell_(place_->entry, std::move(message));
}

// An entry that knows the number from a broker before this one, with tokens that this one has not, cannot
// tell them: it is asked under another one.
void RemoteRequests::ask_again(Open& open, Instant now) {
  open.has_gap = true;
  if (now - open.asked < options_.pause) return;
  if (++open.gaps > options_.gaps_max) {
    cancel_at_entry(open);
    renumber(open);
  }
  send(open, now);
}

void RemoteRequests::renumber(Open& open) {
  by_number_.erase(open.number);
  open.number = next_number_++;
  open.is_at_entry = open.has_gap = false;
  open.gaps = 0;
}

void RemoteRequests::cancel_at_entry(const Open& open) {
  if (!place_ || !open.is_at_entry) return;
  tell_(place_->entry,
        proto::CancelRequest{.run = job_, .plan_version = place_->plan_version, .request = open.number});
}

// ---- from the entry

void RemoteRequests::progress(const PeerId& from, const proto::ServeProgress& progress, Instant now) {
  if (!place_ || from != place_->entry || progress.run != job_ ||
      progress.plan_version != place_->plan_version)
    return metrics_.add("weft_serve_strays_total", 1, {{"model", name_}});
  if (progress.load) count_load(*progress.load);
  if (progress.guesses > 0) {
    metrics_.add("weft_serve_guesses_total", progress.guesses, {{"model", name_}});
    metrics_.add("weft_serve_guesses_right_total", progress.guesses_right, {{"model", name_}});
  }
  const auto found = by_number_.find(progress.request);
  if (found == by_number_.end()) return;  // it has ended here already
  const uint64_t id = found->second;
  Open& open = open_.at(id);
  open.heard = now;
  if (progress.first > open.tokens.size()) return ask_again(open, now);
  if (take_tokens(id, progress, now) && progress.end) take_end(id, progress, now);
  pump(now);
}

bool RemoteRequests::take_tokens(uint64_t id, const proto::ServeProgress& progress, Instant now) {
  Open& open = open_.at(id);
  size_t position = progress.first;
  for (const proto::ServedToken& token : progress.tokens) {
    const size_t at = position++;
    if (at < open.tokens.size()) {
      if (open.tokens[at] == token.token) continue;
      distrust(id, "position " + std::to_string(at) + " is told otherwise than before", now);
      return false;
    }
    if (!take(id, token, now)) return false;
  }
  return true;
}

bool RemoteRequests::take(uint64_t id, const proto::ServedToken& token, Instant now) {
  Open& open = open_.at(id);
  const auto is_token = [this](int64_t number) { return number >= 0 && number < vocabulary_; };
  const auto wanted = static_cast<size_t>(std::max<int64_t>(open.request.sampling.alternatives, 0));
  if (!is_token(token.token) || token.alternatives.size() > wanted ||
      !std::ranges::all_of(token.alternatives, [&](const auto& other) { return is_token(other.first); })) {
    distrust(id, "the model has no such token, or others are told beside it than were asked for", now);
    return false;
  }
  const auto position = static_cast<int64_t>(open.tokens.size());
  open.tokens.push_back(token.token);
  open.has_gap = false;
  open.gaps = open.losses = 0;
  count_token(open, now);
  const bool is_wanted = open.listener.on_token({.draw = {.token = token.token,
                                                          .log_probability = token.log_probability,
                                                          .alternatives = token.alternatives},
                                                 .position = position});
  const bool is_full = open.drawn() == static_cast<size_t>(open.tokens_max);  // the entry knows that, too
  if (is_wanted && !is_full) return true;
  if (!is_full) cancel_at_entry(open);
  end(id, is_wanted ? Finish::Length : Finish::Stop);
  return false;
}

void RemoteRequests::count_load(const proto::ServeLoad& load) {
  const Labels labels{{"model", name_}};
  metrics_.add("weft_serve_passes_total", load.passes, labels);
  metrics_.add("weft_serve_rows_total", load.rows, labels);
  load_ = load;
}

void RemoteRequests::count_token(Open& open, Instant now) {
  const Labels labels{{"model", name_}};
  metrics_.add("weft_serve_tokens_total", 1, labels);
  metrics_.observe(open.last_token ? "weft_serve_between_tokens_seconds" : "weft_serve_first_token_seconds",
                   seconds(now - open.last_token.value_or(open.arrived)), labels);
  open.last_token = last_token_ = moved_on_ = now;
}

void RemoteRequests::take_end(uint64_t id, const proto::ServeProgress& progress, Instant now) {
  Open& open = open_.at(id);
  if (*progress.end == proto::ServeEnd::Cancelled)  // by nobody here
    return take_failure(id, {ErrorCode::Cancelled, "who computes '" + name_ + "' has given it up"}, now);
  if (*progress.end == proto::ServeEnd::Failed)
    return take_failure(id, progress.error.value_or(Error{ErrorCode::Internal, "the entry does not say why"}),
                        now);
  const size_t at = progress.first + progress.tokens.size();
  if (*progress.end == proto::ServeEnd::Stop && at == open.tokens.size()) return end(id, Finish::Stop);
  distrust(id, "it ends at position " + std::to_string(at) + " of " + std::to_string(open.tokens.size()),
           now);
}

// Its own failure is told at once; of what passes nobody hears whose text has begun.
void RemoteRequests::take_failure(uint64_t id, Error error, Instant now) {
  if (error.code == ErrorCode::Corrupted) return take_spoilt(id, now);
  Open& open = open_.at(id);
  error.message = shown(error.message);
  const bool is_full = error.code == ErrorCode::ResourceExhausted && open.drawn() == 0;
  if (is_passing(error.code) && !is_full && open.tries < options_.tries_max) return try_later(open, now);
  end(id, Finish::Failed, fail(std::move(error)));
}

// A model may make NaN of a text, and so does a peer that is broken.
void RemoteRequests::take_spoilt(uint64_t id, Instant now) {
  Open& open = open_.at(id);
  if (open.spoilt >= options_.spoilt_max) return end_spoilt(id);
  renumber(open);
  open.spoilt_since = now;
}

void RemoteRequests::end_spoilt(uint64_t id) {
  end(id, Finish::Failed,
      fail(ErrorCode::Corrupted, "'" + name_ + "' makes numbers of this text that are not finite (NaN or " +
                                     "infinity), so it has no answer to it"));
}

// A request that takes down whoever computes it.
void RemoteRequests::end_lost() {
  std::vector<uint64_t> lost;
  for (const auto& [id, open] : open_)
    if (open.losses >= options_.losses_max) lost.push_back(id);
  for (const uint64_t id : lost)
    end(id, Finish::Failed,
        fail(ErrorCode::Unavailable, "peers that compute '" + name_ + "' were lost " +
                                         std::to_string(options_.losses_max) +
                                         " times while this text was under way"));
}

// Under another number: by this one the entry would tell the same end again.
void RemoteRequests::try_later(Open& open, Instant now) {
  renumber(open);
  open.not_before = now + options_.pause;
  ++open.tries;
}

// Under another number the entry begins anew behind the tokens that were told.
void RemoteRequests::distrust(uint64_t id, const std::string& what, Instant now) {
  Open& open = open_.at(id);
  metrics_.add("weft_serve_contradictions_total", 1, {{"model", name_}});
  log_("warning serve_contradiction job=" + std::to_string(job_) + " entry=" + to_string(place_->entry) +
       " what=\"" + what + "\"");
  cancel_at_entry(open);
  if (++open.contradictions > options_.contradictions_max)
    return end(id, Finish::Failed,
               fail(ErrorCode::Corrupted, "who computes '" + name_ + "' contradicts itself"));
  renumber(open);
  pump(now);
}

// ---- time

void RemoteRequests::tick(Instant now) {
  std::vector<uint64_t> ids;
  for (const auto& [id, open] : open_) ids.push_back(id);
  for (const uint64_t id : ids) tick_one(id, now);
  pump(now);
}

void RemoteRequests::tick_one(uint64_t id, Instant now) {
  Open& open = open_.at(id);
  if (!place_) {
    const Duration patience =
        open.drawn() == 0 && !open.was_under_way ? options_.without_place : options_.under_way_without;
    if (now - *placeless_since_ < patience) return;
    return end(id, Finish::Failed,
               fail(ErrorCode::Unavailable, "'" + name_ + "' cannot answer now: " + unavailable_));
  }
  if (open.spoilt_since && now - *open.spoilt_since >= options_.blame) return end_spoilt(id);
  if (!open.is_at_entry) return;
  if (now - std::max(moved_on_, open.sent) >= options_.stalled) {
    cancel_at_entry(open);
    return end(
        id, Finish::Failed,
        fail(ErrorCode::Timeout, "no token of '" + name_ + "' has come for " +
                                     std::to_string(static_cast<int>(seconds(options_.stalled))) + " s"));
  }
  const bool is_silent = now - std::max(open.heard, open.asked) >= options_.silence;
  if (is_silent)
    send(open, now);
  else if (open.has_gap)
    ask_again(open, now);
}

// ---- figures

serve::TokenSource::Pulse RemoteRequests::pulse() const {
  serve::TokenSource::Pulse pulse{.last_pass = last_token_};
  if (!open_.empty()) pulse.waiting_since = std::max(last_token_, open_.begin()->second.arrived);
  return pulse;
}

Metrics RemoteRequests::metrics() const {
  Metrics metrics = metrics_;
  const Labels labels{{"model", name_}};
  metrics.set("weft_serve_requests_serving", static_cast<double>(by_number_.size()), labels);
  metrics.set("weft_serve_requests_waiting", static_cast<double>(open_.size() - by_number_.size()), labels);
  metrics.set("weft_serve_placed", place_ ? 1 : 0, labels);
  metrics.set("weft_serve_cache_positions_max", place_ ? static_cast<double>(positions_max_) : 0, labels);
  // Of the last request that ends nobody tells what is let go behind it.
  const proto::ServeLoad load = by_number_.empty() ? proto::ServeLoad{} : load_;
  metrics.set("weft_serve_cache_positions", static_cast<double>(load.positions), labels);
  metrics.set("weft_serve_passes_under_way", load.under_way, labels);
  return metrics;
}

}  // namespace weft::broker
