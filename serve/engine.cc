#include "serve/engine.h"

#include <algorithm>
#include <cmath>

namespace weft::serve {
namespace {

std::string number(int64_t value) { return std::to_string(value); }

// The most positions whose memory is within `budget`, at most `context`.
int64_t positions_within(const ModelLimits& model, Bytes budget) {
  int64_t low = 0, high = model.context();
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    if (model.bytes_of(middle) <= budget)
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

// As many guesses as are worth while for most texts are under way at once, in as few passes as it takes.
constexpr int64_t kAhead = 8;

size_t ceil_of(size_t count, size_t shares) { return (count + shares - 1) / shares; }

}  // namespace

int64_t Engine::positions_of(const Request& request) const {
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  return request.tokens_max < 0 ? model_.context() : prompt + request.tokens_max;
}

Status Engine::check(const Request& request) const {
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  const int64_t context = model_.context();
  if (prompt == 0)
    return fail(ErrorCode::InvalidArgument, "the prompt is empty: it needs a token to start from");
  for (const int64_t token : request.prompt)
    if (token < 0 || token >= model_.vocabulary())
      return fail(ErrorCode::InvalidArgument,
                  "the prompt has token " + number(token) + ", the model has " + number(model_.vocabulary()));
  if (prompt > context)
    return fail(ErrorCode::OutOfRange,
                "the prompt has " + number(prompt) + " tokens, the model's context is " + number(context));
  if (positions_of(request) > context)
    return fail(ErrorCode::OutOfRange, "a prompt of " + number(prompt) + " tokens and max_tokens of " +
                                           number(request.tokens_max) + " go beyond the model's context of " +
                                           number(context));
  if (model_.bytes_of(positions_of(request)) > options_.cache_bytes)
    return fail(ErrorCode::OutOfRange,
                "a sequence of " + number(positions_of(request)) +
                    " tokens needs more memory than there is; the largest that fits has " +
                    number(positions_within(model_, options_.cache_bytes)));
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

void Engine::give_up(uint64_t id, const Status& status) { end(id, Finish::Failed, status); }

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
    const Bytes size = model_.bytes_of(positions_of(next.request));
    if (granted_ + size > options_.cache_bytes) return;
    granted_ += size;
    next.granted = size;
    if (decoder_) next.sequence = decoder_->begin();
    const uint64_t id = next.id;
    serving_.emplace(id, std::move(next));
    waiting_.pop_front();
  }
}

// Those that get a row of the next pass: a share of them, so that passes that begin later find as many;
// whoever has waited longest comes first. `any`: whether one generates at all.
std::vector<Engine::Served*> Engine::next_generating(bool& any) {
  std::vector<Served*> free;
  size_t all = 0;
  for (auto& [id, served] : serving_) {
    if (!served.generates()) continue;
    ++all;
    if (served.pending() == 1) free.push_back(&served);
  }
  any = all > 0;
  const size_t places = shared() - (passes_.size() - guessed_passes());
  const size_t most = std::min(
      {ceil_of(all, shared()), ceil_of(free.size(), places), static_cast<size_t>(model_.rows_max())});
  if (free.size() <= most) return free;
  std::stable_sort(free.begin(), free.end(),
                   [](const Served* a, const Served* b) { return a->last_pass < b->last_pass; });
  free.resize(most);
  return free;
}

// Whether this pass was used to make room for a prompt, which takes as long as its rows do: those that
// generate wait for one of the two.
bool Engine::makes_room(Served& served, int64_t rows) {
  return decoder_ != nullptr &&
         decoder_->make_room(*served.sequence, served.begun + rows, positions_of(served.request), rows);
}

std::vector<Engine::Turn> Engine::share_rows() {
  std::vector<Turn> turns;
  int64_t left = model_.rows_max();
  if (passes_.size() - guessed_passes() >= shared()) {
    guess(turns, left);
    return turns;
  }
  bool any_generates = false;
  for (const Served* served : next_generating(any_generates)) {
    turns.push_back({served->id, 1, 1, served->epoch});
    --left;
  }
  if (options_.draft) left -= guess(turns, left - rows_for_prompts());
  if (any_generates && reading() <= generating()) left = std::min(left, options_.prompt_rows);
  for (auto& [id, served] : serving_) {
    if (served.pending() <= 0 || served.generates() || left <= 0) continue;
    const int64_t rows = std::min(left, served.pending());
    if (any_generates && makes_room(served, rows)) continue;
    turns.push_back({id, rows, rows == served.pending() ? 1 : 0, served.epoch});
    left -= rows;
  }
  return turns;
}

// What guesses leave to them.
int64_t Engine::rows_for_prompts() const { return reading() > 0 ? options_.prompt_rows : 0; }

size_t Engine::reading() const {
  const auto reads = [](const auto& one) { return one.second.pending() > 0 && !one.second.generates(); };
  return static_cast<size_t>(std::count_if(serving_.begin(), serving_.end(), reads));
}

size_t Engine::generating() const {
  return static_cast<size_t>(std::count_if(serving_.begin(), serving_.end(),
                                           [](const auto& served) { return served.second.generates(); }));
}

// Of what a token costs all that generate, what a guess costs them. Where as many generate as there are
// passes, that is a row more in a pass; where there is room for passes of guesses alone, half of one pass on
// the average, of as many as go round.
double Engine::guess_cost() const {
  const auto all = static_cast<double>(generating());
  const auto passes = static_cast<double>(shared());
  const double rows = std::max(1.0, std::ceil(all / passes));
  const double in_pass = options_.row_cost * rows / (1 + (rows - 1) * options_.row_cost);
  if (options_.passes_max == 1) return in_pass;
  const double load = passes > 1 ? std::clamp((all - 1) / (passes - 1), 0.0, 1.0) : 1;
  return 0.5 / static_cast<double>(options_.passes_max) + load * in_pass;
}

// Whether a pass may have guesses alone: each sequence that generates finds a place for its next token.
bool Engine::may_guess_alone() const {
  return std::min(generating(), shared()) + guessed_passes() < options_.passes_max;
}

size_t Engine::shared() const {
  return options_.draft && options_.passes_shared > 0 ? options_.passes_shared : options_.passes_max;
}

// Passes under way that have guesses alone.
size_t Engine::guessed_passes() const {
  if (!options_.draft) return 0;
  const auto is_alone = [](const auto& pass) {
    const auto& turns = pass.second.turns;
    return std::all_of(turns.begin(), turns.end(), [](const Turn& turn) { return turn.is_guessed(); });
  };
  return static_cast<size_t>(std::count_if(passes_.begin(), passes_.end(), is_alone));
}

// Rows of a pass for guesses, at most `most`. A sequence that may be in many passes at once has one row in
// each, so that its next token waits for none; one that may not has several, behind its pending token.
// Returns how many rows.
int64_t Engine::guess(std::vector<Turn>& turns, int64_t most) {
  int64_t left = std::max<int64_t>(0, most);
  const size_t all = std::max<size_t>(1, generating());
  const auto places = static_cast<int64_t>(options_.passes_max / all);  // of each sequence
  const int64_t rows = std::min(options_.draft_rows, places == 0 ? kAhead : (kAhead - 1) / places + 1);
  const double cost = guess_cost() + options_.draft->cost() / static_cast<double>(options_.passes_max);
  const int64_t share = turns.empty() ? 0 : std::min(rows, left / static_cast<int64_t>(turns.size()));
  for (Turn& turn : turns)
    if (rows > 1) left -= add_guesses(turn, guesses_of(serving_.at(turn.id), share, cost));
  if (places <= 1 || (turns.empty() && !may_guess_alone())) return std::max<int64_t>(0, most) - left;
  for (auto& [id, served] : serving_) {
    if (left <= 0) break;
    if (!served.generates() || served.pending() > 0) continue;
    Turn turn{.id = id, .epoch = served.epoch};
    left -= add_guesses(turn, guesses_of(served, std::min(rows, left), cost));
    if (turn.rows > 0) turns.push_back(std::move(turn));
  }
  return std::max<int64_t>(0, most) - left;
}

int64_t Engine::add_guesses(Turn& turn, std::vector<int64_t> guesses) {
  const auto count = static_cast<int64_t>(guesses.size());
  turn.guesses = std::move(guesses);
  turn.rows += count;
  turn.logits += count;
  return count;
}

// Behind all that is known or guessed. A row makes the token behind it, and the last one is not computed.
std::vector<int64_t> Engine::guesses_of(Served& served, int64_t most, double cost) {
  const auto known = static_cast<int64_t>(served.tokens.size() + served.guessed.size());
  most = std::min(most, positions_of(served.request) - 1 - known);
  const int64_t count = served.depth.next(static_cast<int64_t>(served.guessed.size()), most, cost);
  if (count <= 0) return {};
  std::vector<int64_t> text = served.tokens;
  text.insert(text.end(), served.guessed.begin(), served.guessed.end());
  auto guesses = options_.draft->propose(served.id, text, served.request.sampling, count);
  if (static_cast<int64_t>(guesses.size()) > count) guesses.resize(static_cast<size_t>(count));
  const auto is_none = [&](int64_t token) { return token < 0 || token >= model_.vocabulary(); };
  guesses.erase(std::find_if(guesses.begin(), guesses.end(), is_none), guesses.end());
  return guesses;
}

// As many as there may be sequences, so that the pieces of a pass are bounded.
std::vector<uint64_t> Engine::take_ends() {
  const auto first = ended_.begin();
  const auto last = first + static_cast<std::ptrdiff_t>(std::min(ended_.size(), options_.sequences_max));
  std::vector<uint64_t> ends(first, last);
  ended_.erase(first, last);
  return ends;
}
void Engine::tell_again(const UnderWay& pass) {
  ended_.insert(ended_.end(), pass.ends.begin(), pass.ends.end());
}

void Engine::add_rows(const Turn& turn, Begun& begun) {
  Served& served = serving_.at(turn.id);
  served.last_pass = begun.number;
  begun.pieces.push_back({turn.id, served.begun, turn.rows, turn.logits, positions_of(served.request)});
  const auto guesses = static_cast<int64_t>(turn.guesses.size());
  const int64_t known = turn.rows - guesses;
  if (known > 0) {
    const auto first = served.tokens.begin() + served.begun;
    begun.tokens.insert(begun.tokens.end(), first, first + known);
  }
  begun.tokens.insert(begun.tokens.end(), turn.guesses.begin(), turn.guesses.end());
  served.guessed.insert(served.guessed.end(), turn.guesses.begin(), turn.guesses.end());
  served.begun += turn.rows;
}

std::optional<Engine::Begun> Engine::begin() {
  end_cancelled();
  admit();
  if (passes_.size() >= options_.passes_max) return std::nullopt;
  UnderWay pass{share_rows(), take_ends()};
  if (pass.turns.empty() && pass.ends.empty()) return std::nullopt;
  Begun begun;
  begun.number = ++last_pass_;
  for (const uint64_t id : pass.ends) begun.pieces.push_back({.sequence = id});
  for (const Turn& turn : pass.turns) add_rows(turn, begun);
  passes_.emplace(begun.number, std::move(pass));
  return begun;
}

Engine::Tick Engine::finish(uint64_t pass, const Result<dag::Tensor>& logits) {
  Tick tick;
  const auto found = passes_.find(pass);
  tick.idle = found == passes_.end() || (options_.draft && found != passes_.begin());
  if (tick.idle) {
    tick.status = fail(ErrorCode::InvalidArgument, "pass " + std::to_string(pass) + " is not under way");
    return tick;
  }
  const UnderWay under_way = std::move(found->second);
  passes_.erase(found);
  int64_t draws = 0;
  for (const Turn& turn : under_way.turns) {
    tick.rows += turn.rows;
    tick.guessed += static_cast<int64_t>(turn.guesses.size());
    draws += is_wanted(turn) ? turn.logits : 0;
  }
  if (!logits)
    tick.status = fail(logits.error());
  else if (logits->spec() != dag::TensorSpec{dag::DType::F32, {draws, model_.vocabulary()}})
    tick.status =
        fail(ErrorCode::Internal, "the logits of a pass are " + to_string(logits->spec()) + ", wanted are " +
                                      number(draws) + " rows of " + number(model_.vocabulary()));
  if (tick.status) {
    take_all(under_way.turns, *logits, tick);
    return tick;
  }
  tell_again(under_way);
  for (const Turn& turn : under_way.turns)
    if (is_wanted(turn)) end(turn.id, Finish::Failed, tick.status);
  return tick;
}

Engine::Tick Engine::tick() {
  WEFT_CHECK(decoder_ != nullptr);
  const auto begun = begin();
  if (begun) return finish(begun->number, decode(*begun));
  Tick tick;
  tick.idle = true;
  return tick;
}

Result<dag::Tensor> Engine::decode(const Begun& begun) {
  std::vector<Piece> pieces;
  std::span<const int64_t> tokens = begun.tokens;
  for (const PassPiece& piece : begun.pieces) {
    const auto count = static_cast<size_t>(piece.count);
    Sequence& sequence = *serving_.at(piece.sequence).sequence;
    if (sequence.length() > piece.first) decoder_->cut(sequence, piece.first);
    pieces.push_back({&sequence, tokens.first(count), piece.logits, piece.expected});
    tokens = tokens.subspan(count);
  }
  return decoder_->pass(pieces);
}

// Of passes under way: pieces of a sequence follow each other. What was taken back already is not once more.
void Engine::take_back() {
  for (const auto& [number, pass] : passes_) {
    tell_again(pass);
    for (const Turn& turn : pass.turns)
      if (is_wanted(turn)) serving_.at(turn.id).begun -= turn.rows;
  }
  passes_.clear();
  for (auto& [id, served] : serving_) forget_guesses(served);
}

void Engine::forget_guesses(Served& served) {
  served.guessed.clear();
  ++served.epoch;
}

bool Engine::is_wanted(const Turn& turn) const {
  const auto served = serving_.find(turn.id);
  return served != serving_.end() && served->second.epoch == turn.epoch;
}

bool Engine::wants(uint64_t pass, uint64_t id) const {
  const auto under_way = passes_.find(pass);
  if (under_way == passes_.end()) return false;
  const auto& turns = under_way->second.turns;
  return std::any_of(turns.begin(), turns.end(),
                     [&](const Turn& turn) { return turn.id == id && is_wanted(turn); });
}

void Engine::resume(const IsKept& is_kept, uint64_t numbers_behind) {
  take_back();
  for (auto& [id, served] : serving_)
    if (!is_kept(id)) served.begun = 0;
  last_pass_ = std::max(last_pass_, numbers_behind);
}

int64_t Engine::begun(uint64_t id) const {
  const auto served = serving_.find(id);
  return served == serving_.end() ? 0 : served->second.begun;
}

void Engine::restart() {
  take_back();
  for (auto& [id, served] : serving_) {
    served.begun = 0;
    if (decoder_) served.sequence = decoder_->begin();
  }
}

void Engine::take_all(const std::vector<Turn>& turns, const dag::Tensor& logits, Tick& tick) {
  const auto width = static_cast<size_t>(model_.vocabulary());
  std::vector<Turn> drawn;  // before anybody ends
  for (const Turn& turn : turns)
    if (turn.logits > 0 && is_wanted(turn)) drawn.push_back(turn);
  size_t row = 0;
  for (const Turn& turn : drawn)
    for (int64_t i = 0; i < turn.logits; ++i, ++row) {
      if (!is_wanted(turn)) continue;
      ++tick.generated;
      take(serving_.at(turn.id), logits.as<float>().subspan(row * width, width), tick);
    }
}

// The token that was drawn. Where another one was guessed, all behind it is computed again.
void Engine::append(Served& served, int64_t token, Tick& tick) {
  served.tokens.push_back(token);
  if (served.guessed.empty()) return served.depth.count_none();
  const bool is_right = served.guessed.front() == token;
  served.depth.count(is_right);
  if (is_right) {
    ++tick.accepted;
    served.guessed.pop_front();
    return;
  }
  served.begun = static_cast<int64_t>(served.tokens.size()) - 1;
  forget_guesses(served);
}

void Engine::take(Served& served, std::span<const float> logits, Tick& tick) {
  if (served.cancelled) return;
  const uint64_t id = served.id;
  const auto position = static_cast<int64_t>(served.tokens.size());
  const auto draw = draw_token(logits, served.request.sampling, position);
  if (!draw) return end(id, Finish::Failed, fail(draw.error()));
  const auto& ends = served.request.ends;
  if (std::find(ends.begin(), ends.end(), draw->token) != ends.end()) return end(id, Finish::Stop);
  const auto generated = position + 1 - static_cast<int64_t>(served.request.prompt.size());
  const bool full = generated == served.request.tokens_max || position + 1 >= model_.context();
  append(served, draw->token, tick);
  if (!served.listener.on_token({*draw, position})) return end(id, Finish::Stop);
  if (full) end(id, Finish::Length);
}

void Engine::end(uint64_t id, Finish finish, const Status& status) {
  const auto found = serving_.find(id);
  if (found == serving_.end()) return;
  const Served served = std::move(found->second);
  serving_.erase(found);
  granted_ = granted_ - served.granted;
  if (!decoder_ && served.last_pass > 0) ended_.push_back(id);
  if (options_.draft) options_.draft->end(id);
  served.listener.on_end(finish, status);
}

}  // namespace weft::serve
