#include "peer/machine/serve_requests.h"

#include <algorithm>
#include <string>
#include <utility>

namespace weft::peer {

using proto::ServeEnd;
using proto::ServeProgress;

ServeRequests::ServeRequests(const proto::AssignStage& assignment)
    : run_(assignment.run),
      plan_version_(assignment.plan_version),
      open_max_(assignment.serve->sequences_max + kWaitingMax) {}

std::optional<Error> ServeRequests::has_no_room_for(const proto::ServeRequest& request) const {
  if (open() >= open_max_)
    return Error{ErrorCode::ResourceExhausted, std::to_string(open()) + " requests are open already"};
  if (request.tokens.size() > kPromptTokensMax - open_prompt_tokens_)
    return Error{ErrorCode::ResourceExhausted, "the prompts of open requests have " +
                                                   std::to_string(open_prompt_tokens_) + " tokens already"};
  return std::nullopt;
}

bool ServeRequests::add(Instant now, const proto::ServeRequest& request) {
  trim();
  not_asked_.erase(request.request);
  if (!asked_since_) asked_since_ = now;
  const auto known = requests_.find(request.request);
  if (known != requests_.end()) {
    to_tell_.insert(request.request);
    Request& here = known->second;
    const uint64_t named = request.tokens.size();
    here.told = std::clamp(named, here.prompt, here.prompt + here.tokens.size()) - here.prompt;
    return false;
  }
  const auto refusal = has_no_room_for(request);
  requests_[request.request].prompt = request.tokens.size();
  open_prompt_tokens_ += request.tokens.size();
  if (refusal) end(now, request.request, ServeEnd::Failed, refusal);
  return !refusal;
}

bool ServeRequests::is_open(uint64_t request) const {
  const auto known = requests_.find(request);
  return known != requests_.end() && !known->second.end;
}

void ServeRequests::on_progress(Instant now, const ServeProgress& progress) {
  guesses_ += progress.guesses;
  guesses_right_ += progress.guesses_right;
  const auto known = requests_.find(progress.request);
  if (known == requests_.end() || known->second.end) return;
  Request& request = known->second;
  request.tokens.insert(request.tokens.end(), progress.tokens.begin(), progress.tokens.end());
  to_tell_.insert(progress.request);
  if (progress.end) end(now, progress.request, *progress.end, progress.error);
}

void ServeRequests::on_load(const proto::ServeLoad& load) {
  const auto sum = [](uint32_t a, uint32_t b) {
    return static_cast<uint32_t>(std::min<uint64_t>(uint64_t{a} + b, UINT32_MAX));
  };
  load_ = {.positions = load.positions,
           .under_way = load.under_way,
           .passes = sum(load_.passes, load.passes),
           .rows = sum(load_.rows, load.rows)};
}

void ServeRequests::end(Instant now, uint64_t number, ServeEnd end, const std::optional<Error>& error) {
  Request& request = requests_.at(number);
  request.end = end;
  request.error = error;
  open_prompt_tokens_ -= request.prompt;
  ended_tokens_ += request.tokens.size();
  ended_.emplace_back(now, number);
  to_tell_.insert(number);
}

void ServeRequests::trim() {
  while (ended_.size() > kEndedMax || ended_tokens_ > kEndedTokensMax) forget_oldest();
}

void ServeRequests::forget_oldest() {
  const uint64_t number = ended_.front().second;
  ended_.pop_front();
  const auto gone = requests_.extract(number);
  ended_tokens_ -= gone.mapped().tokens.size();
  to_tell_.erase(number);
}

void ServeRequests::on_tick(Instant now) {
  while (!ended_.empty() && now - ended_.front().first >= kEndedFor) forget_oldest();
}

void ServeRequests::take_over(const proto::AssignStage& assignment) {
  plan_version_ = assignment.plan_version;
  to_tell_.clear();
  asked_since_.reset();
  for (const auto& [number, request] : requests_)
    if (!request.end) not_asked_.insert(number);
}

std::vector<uint64_t> ServeRequests::take_unwanted(Instant now) {
  if (!asked_since_ || now - *asked_since_ < kAskedAgainFor) return {};
  std::vector<uint64_t> unwanted;
  for (const uint64_t number : std::exchange(not_asked_, {}))
    if (is_open(number)) unwanted.push_back(number);
  return unwanted;
}

void ServeRequests::tell_all() {
  for (const auto& [number, request] : requests_) to_tell_.insert(number);
}

void ServeRequests::tell(uint64_t number, Request& request, std::vector<ServeProgress>& progress) const {
  do {
    const uint64_t count = std::min<uint64_t>(kTokensAtOnce, request.tokens.size() - request.told);
    ServeProgress& next = progress.emplace_back(ServeProgress{.run = run_,
                                                              .plan_version = plan_version_,
                                                              .request = number,
                                                              .first = request.prompt + request.told});
    const auto from = request.tokens.begin() + static_cast<std::ptrdiff_t>(request.told);
    next.tokens.assign(from, from + static_cast<std::ptrdiff_t>(count));
    request.told += count;
  } while (request.told < request.tokens.size());
  progress.back().end = request.end;
  progress.back().error = request.error;
}

std::vector<ServeProgress> ServeRequests::take() {
  std::vector<ServeProgress> progress;
  for (const uint64_t number : std::exchange(to_tell_, {})) tell(number, requests_.at(number), progress);
  if (!progress.empty()) {
    progress.front().guesses = std::exchange(guesses_, 0);
    progress.front().guesses_right = std::exchange(guesses_right_, 0);
    progress.front().load = load_;
    load_.passes = load_.rows = 0;
  }
  trim();
  return progress;
}

}  // namespace weft::peer
