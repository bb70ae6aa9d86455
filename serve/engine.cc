#include "serve/engine.h"

#include <algorithm>

namespace weft::serve {
namespace {

std::string number(int64_t value) { return std::to_string(value); }

// The most positions whose memory is within `budget`, at most `context`.
int64_t positions_within(const Decoder& decoder, Bytes budget) {
  int64_t low = 0, high = decoder.context();
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    if (decoder.bytes_of(middle) <= budget)
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

}  // namespace

int64_t Engine::positions_of(const Request& request) const {
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  return request.tokens_max < 0 ? decoder_.context() : prompt + request.tokens_max;
}

Status Engine::check(const Request& request) const {
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  const int64_t context = decoder_.context();
  if (prompt == 0) return fail(ErrorCode::InvalidArgument, "the prompt is empty: it needs a token to start from");
  for (const int64_t token : request.prompt)
    if (token < 0 || token >= decoder_.vocabulary())
      return fail(ErrorCode::InvalidArgument, "the prompt has token " + number(token) + ", the model has " +
                                                  number(decoder_.vocabulary()));
  if (prompt > context)
    return fail(ErrorCode::OutOfRange, "the prompt has " + number(prompt) + " tokens, the model's context is " +
                                           number(context));
  if (positions_of(request) > context)
    return fail(ErrorCode::OutOfRange, "a prompt of " + number(prompt) + " tokens and max_tokens of " +
                                           number(request.tokens_max) + " go beyond the model's context of " +
                                           number(context));
  if (decoder_.bytes_of(positions_of(request)) > options_.cache_bytes)
    return fail(ErrorCode::OutOfRange, "a sequence of " + number(positions_of(request)) +
                                           " tokens needs more memory than there is; the largest that fits has " +
                                           number(positions_within(decoder_, options_.cache_bytes)));
  return {};
}

Result<uint64_t> Engine::add(Request request, Listener listener) {
  WEFT_TRY_STATUS(check(request));
  admit();
  if (waiting_.size() >= options_.waiting_max)
    return fail(ErrorCode::ResourceExhausted, number(static_cast<int64_t>(waiting_.size())) +
                                            " requests are waiting already; try again later");
  Served served;
  served.id = ++last_id_;
  served.tokens = request.prompt;
  served.request = std::move(request);
  served.listener = std::move(listener);
  waiting_.push_back(std::move(served));
  return last_id_;
}

void Engine::cancel(uint64_t id) {
  if (const auto served = serving_.find(id); served != serving_.end()) served->second.cancelled = true;
  for (Served& served : waiting_)
    if (served.id == id) served.cancelled = true;
}

void Engine::cancel_all() {
  for (auto& [id, served] : serving_) served.cancelled = true;
  for (Served& served : waiting_) served.cancelled = true;
}

void Engine::end_cancelled() {
  std::vector<uint64_t> gone;
  for (const auto& [id, served] : serving_)
    if (served.cancelled) gone.push_back(id);
  for (const uint64_t id : gone) end(id, Finish::Cancelled);
  for (size_t i = 0; i < waiting_.size();) {
    if (!waiting_[i].cancelled) {
      ++i;
      continue;
    }
    const Served served = std::move(waiting_[i]);
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
    served.listener.on_end(Finish::Cancelled, {});
  }
}

void Engine::admit() {
  while (!waiting_.empty() && serving_.size() < options_.sequences_max) {
    Served& next = waiting_.front();
    const Bytes size = decoder_.bytes_of(positions_of(next.request));
    if (granted_ + size > options_.cache_bytes) return;
    granted_ += size;
    next.granted = size;
    next.sequence = decoder_.begin();
    const uint64_t id = next.id;
    serving_.emplace(id, std::move(next));
    waiting_.pop_front();
  }
}

std::vector<Engine::Turn> Engine::share_rows() {
  std::vector<Turn> turns;
  int64_t left = decoder_.rows_max();
  for (auto& [id, served] : serving_) {
    if (!served.generates() || left == 0) continue;
    turns.push_back({&served, 1, true});
    --left;
  }
  if (!turns.empty()) left = std::min(left, options_.prompt_rows);
  for (auto& [id, served] : serving_) {
    if (served.generates() || left == 0) continue;
    const int64_t rows = std::min(left, served.pending());
    turns.push_back({&served, rows, rows == served.pending()});
    left -= rows;
  }
  return turns;
}

Engine::Tick Engine::tick() {
  Tick tick;
  end_cancelled();
  admit();
  const std::vector<Turn> turns = share_rows();
  tick.idle = turns.empty();
  if (tick.idle) return tick;
  std::vector<uint64_t> in_pass;
  for (const Turn& turn : turns) in_pass.push_back(turn.served->id);
  tick.status = run(turns, tick);
  if (!tick.status)
    for (const uint64_t id : in_pass) end(id, Finish::Failed, tick.status);
  return tick;
}

Status Engine::run(const std::vector<Turn>& turns, Tick& tick) {
  std::vector<Piece> pieces;
  for (const Turn& turn : turns) {
    const auto begin = static_cast<size_t>(turn.served->sequence->length());
    pieces.push_back({turn.served->sequence.get(),
                      std::span<const int64_t>(turn.served->tokens).subspan(begin, static_cast<size_t>(turn.rows)),
                      turn.draws ? 1 : 0, positions_of(turn.served->request)});
    tick.rows += turn.rows;
  }
  WEFT_TRY(const dag::Tensor logits, decoder_.pass(pieces));
  const auto width = static_cast<size_t>(decoder_.vocabulary());
  size_t row = 0;
  for (const Turn& turn : turns) {
    if (!turn.draws) continue;
    ++tick.generated;
    take(*turn.served, logits.as<float>().subspan(row++ * width, width));
  }
  return {};
}

bool Engine::take(Served& served, std::span<const float> logits) {
  const uint64_t id = served.id;
  if (served.cancelled) return false;
  const auto position = static_cast<int64_t>(served.tokens.size());
  const auto end_with = [&](Finish finish, const Status& status = {}) {
    end(id, finish, status);
    return true;
  };
  const auto draw = draw_token(logits, served.request.sampling, position);
  if (!draw) return end_with(Finish::Failed, fail(draw.error()));
  const auto& ends = served.request.ends;
  if (std::find(ends.begin(), ends.end(), draw->token) != ends.end()) return end_with(Finish::Stop);
  const auto generated = position + 1 - static_cast<int64_t>(served.request.prompt.size());
  const bool full = generated == served.request.tokens_max || position + 1 >= decoder_.context();
  served.tokens.push_back(draw->token);
  if (!served.listener.on_token({*draw, position})) return end_with(Finish::Stop);
  return full ? end_with(Finish::Length) : false;
}

void Engine::end(uint64_t id, Finish finish, const Status& status) {
  const auto found = serving_.find(id);
  if (found == serving_.end()) return;
  const Served served = std::move(found->second);
  serving_.erase(found);
  granted_ = granted_ - served.granted;
  served.listener.on_end(finish, status);
}

}  // namespace weft::serve
