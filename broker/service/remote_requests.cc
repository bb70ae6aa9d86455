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

// What may be otherwise a moment later, or where the ring is placed again.
bool is_passing(ErrorCode code) {
  return code == ErrorCode::Unavailable || code == ErrorCode::Timeout || code == ErrorCode::Cancelled ||
         code == ErrorCode::DeviceLost || code == ErrorCode::ResourceExhausted;
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
      figures_(name_) {}

// ---- what is taken

bool RemoteRequests::fits(int64_t positions) const {
  return serve::rounded_capacity(positions, context_) <= positions_max_;
}

bool RemoteRequests::answers(Instant now) const {
  if (closed_) return false;
  return place_ || (placeless_since_ && now - *placeless_since_ < options_.without_place);
}

Status RemoteRequests::room_for(const serve::Request& request, Instant now) {
  if (closed_) return fail(*closed_);
  if (!answers(now))
    return fail(ErrorCode::Unavailable, "'" + name_ + "' cannot answer now: " + unavailable_);
  WEFT_TRY_STATUS(limits().check(request, [this](int64_t positions) { return fits(positions); }));
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
    figures_.count_end(Finish::Failed);
    return listener.on_end(Finish::Failed, room);
  }
  take(next_number_, std::move(request), std::move(listener), std::move(begun), now);
  pump(now);
}

// What it is about was looked at before, by a broker that knew the same model.
void RemoteRequests::reopen(uint64_t number, serve::Request request, serve::Listener listener,
                            serve::TokenSource::Begun begun, Instant now) {
  const bool is_ours =
      request.tokens_max >= 0 && limits().check(request, [](int64_t) { return true; }).has_value();
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
  figures_.count_end(finish);
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
  figures_.forget_load();
  by_number_.clear();
  for (auto& [id, open] : open_) open.lose_place();
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
  proto::ServeRequest message = open.message();
  message.run = job_;
  message.plan_version = place_->plan_version;
  if (std::exchange(open.was_sent, true)) figures_.count("weft_serve_asked_again_total");
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
  open.renumber(next_number_++);
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
    return figures_.count("weft_serve_strays_total");
  figures_.count_progress(progress);
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
  open.add_token(token.token);
  figures_.count_token(!open.last_token, now - open.last_token.value_or(open.arrived));
  open.last_token = last_token_ = moved_on_ = now;
  const bool is_wanted = open.listener.on_token({.draw = {.token = token.token,
                                                          .log_probability = token.log_probability,
                                                          .alternatives = token.alternatives},
                                                 .position = position});
  const bool is_full = open.is_full();  // the entry knows that, too
  if (is_wanted && !is_full) return true;
  if (!is_full) cancel_at_entry(open);
  end(id, is_wanted ? Finish::Length : Finish::Stop);
  return false;
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
  figures_.count("weft_serve_contradictions_total");
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
  ids.reserve(open_.size());
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
  return figures_.metrics({.open = open_.size(),
                           .at_entry = by_number_.size(),
                           .positions_max = place_ ? std::optional(positions_max_) : std::nullopt});
}

}  // namespace weft::broker
