#include "serve/engine.h"

#include <algorithm>
#include <cmath>

namespace weft::serve {
namespace {

std::string number(int64_t value) { return std::to_string(value); }

// As many guesses as are worth while for most texts are under way at once, in as few passes as it takes.
constexpr int64_t kAhead = 8;

size_t ceil_of(size_t count, size_t shares) { return (count + shares - 1) / shares; }

// Of what a token costs all that generate, what a guess costs them. Where as many generate as there are
// passes, that is a row more in a pass; where there is room for passes of guesses alone, half of one pass on
// the average, of as many as go round.
double guess_cost(const EngineOptions& options, size_t generating, size_t shared) {
  const auto all = static_cast<double>(generating);
  const auto passes = static_cast<double>(shared);
  const double rows = std::max(1.0, std::ceil(all / passes));
  const double in_pass = options.row_cost * rows / (1 + (rows - 1) * options.row_cost);
  if (options.passes_max == 1) return in_pass;
  const double load = passes > 1 ? std::clamp((all - 1) / (passes - 1), 0.0, 1.0) : 1;
  return 0.5 / static_cast<double>(options.passes_max) + load * in_pass;
}

}  // namespace

Result<uint64_t> Engine::add(Request request, Listener listener) {
  WEFT_TRY_STATUS(limits().check(
      request, [this](int64_t positions) { return model_.bytes_of(positions) <= options_.cache_bytes; }));
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
  return static_cast<size_t>(std::count_if(serving_.begin(), serving_.end(),
                                           [](const auto& served) { return served.second.reads(); }));
}

size_t Engine::generating() const {
  return static_cast<size_t>(std::count_if(serving_.begin(), serving_.end(),
                                           [](const auto& served) { return served.second.generates(); }));
}

// Whether a pass may have guesses alone: each sequence that generates finds a place for its next token.
bool Engine::may_guess_alone() const {
  return std::min(generating(), shared()) + guessed_passes() < options_.passes_max;
}

size_t Engine::shared() const {
  return options_.draft && options_.passes_shared > 0 ? options_.passes_shared : options_.passes_max;
}

// Passes under way that have guesses alone.
size_t Engine::guessed_passes() const { return options_.draft ? passes_.guessed_alone() : 0; }

// Rows of a pass for guesses, at most `most`. A sequence that may be in many passes at once has one row in
// each, so that its next token waits for none; one that may not has several, behind its pending token.
// Returns how many rows.
int64_t Engine::guess(std::vector<Turn>& turns, int64_t most) {
  int64_t left = std::max<int64_t>(0, most);
  const size_t all = std::max<size_t>(1, generating());
  const auto places = static_cast<int64_t>(options_.passes_max / all);  // of each sequence
  const int64_t rows = std::min(options_.draft_rows, places == 0 ? kAhead : (kAhead - 1) / places + 1);
  const double cost = guess_cost(options_, generating(), shared()) +
                      options_.draft->cost() / static_cast<double>(options_.passes_max);
  const int64_t share = turns.empty() ? 0 : std::min(rows, left / static_cast<int64_t>(turns.size()));
  for (Turn& turn : turns)
    if (rows > 1) left -= turn.add(guesses_of(serving_.at(turn.id), share, cost));
  if (places <= 1 || (turns.empty() && !may_guess_alone())) return std::max<int64_t>(0, most) - left;
  for (auto& [id, served] : serving_) {
    if (left <= 0) break;
    if (!served.generates() || served.pending() > 0) continue;
    Turn turn{.id = id, .epoch = served.epoch};
    left -= turn.add(guesses_of(served, std::min(rows, left), cost));
    if (turn.rows > 0) turns.push_back(std::move(turn));
  }
  return std::max<int64_t>(0, most) - left;
}

// Behind all that is known or guessed. A row makes the token behind it, and the last one is not computed.
std::vector<int64_t> Engine::guesses_of(Served& served, int64_t most, double cost) {
  const auto known = static_cast<int64_t>(served.tokens.size() + served.guessed.size());
  most = std::min(most, positions_of(served.request) - 1 - known);
  const int64_t count = served.depth.next(static_cast<int64_t>(served.guessed.size()), most, cost);
  if (count <= 0) return {};
  auto guesses = options_.draft->propose(served.id, served.text(), served.request.sampling, count);
  if (static_cast<int64_t>(guesses.size()) > count) guesses.resize(static_cast<size_t>(count));
  const auto is_none = [&](int64_t token) { return token < 0 || token >= model_.vocabulary(); };
  guesses.erase(std::find_if(guesses.begin(), guesses.end(), is_none), guesses.end());
  return guesses;
}

void Engine::add_rows(const Turn& turn, Begun& begun) {
  Served& served = serving_.at(turn.id);
  served.last_pass = begun.number;
  begun.pieces.push_back({turn.id, served.begun, turn.rows, turn.logits, positions_of(served.request)});
  const std::vector<int64_t> rows = served.take_rows(turn);
  begun.tokens.insert(begun.tokens.end(), rows.begin(), rows.end());
}

std::optional<Engine::Begun> Engine::begin() {
  end_cancelled();
  admit();
  if (passes_.size() >= options_.passes_max) return std::nullopt;
  // As many ends as there may be sequences, so that the pieces of a pass are bounded.
  PassesUnderWay::Pass pass{share_rows(), passes_.take_ends(options_.sequences_max)};
  if (pass.is_empty()) return std::nullopt;
  Begun begun;
  for (const uint64_t id : pass.ends) begun.pieces.push_back({.sequence = id});
  begun.number = passes_.begin(std::move(pass));
  for (const Turn& turn : *passes_.turns_of(begun.number)) add_rows(turn, begun);
  return begun;
}

Engine::Tick Engine::finish(uint64_t pass, const Result<dag::Tensor>& logits) {
  Tick tick;
  const auto under_way = passes_.take(pass, /*in_order=*/options_.draft != nullptr);
  tick.idle = !under_way;
  if (tick.idle) {
    tick.status = fail(ErrorCode::InvalidArgument, "pass " + std::to_string(pass) + " is not under way");
    return tick;
  }
  int64_t draws = 0;
  for (const Turn& turn : under_way->turns) {
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
    take_all(under_way->turns, *logits, tick);
    return tick;
  }
  passes_.tell_again(*under_way);
  for (const Turn& turn : under_way->turns)
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
  for (const PassesUnderWay::Pass& pass : passes_.take_all())
    for (const Turn& turn : pass.turns)
      if (is_wanted(turn)) serving_.at(turn.id).begun -= turn.rows;
  for (auto& [id, served] : serving_) served.forget_guesses();
}

bool Engine::is_wanted(const Turn& turn) const {
  const auto served = serving_.find(turn.id);
  return served != serving_.end() && served->second.epoch == turn.epoch;
}

bool Engine::wants(uint64_t pass, uint64_t id) const {
  const std::vector<Turn>* turns = passes_.turns_of(pass);
  return turns != nullptr && std::any_of(turns->begin(), turns->end(),
                                         [&](const Turn& turn) { return turn.id == id && is_wanted(turn); });
}

void Engine::resume(const IsKept& is_kept, uint64_t numbers_behind) {
  take_back();
  for (auto& [id, served] : serving_)
    if (!is_kept(id)) served.begun = 0;
  passes_.number_behind(numbers_behind);
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
  tick.accepted += served.append(draw->token) ? 1 : 0;
  if (!served.listener.on_token({*draw, position})) return end(id, Finish::Stop);
  if (full) end(id, Finish::Length);
}

void Engine::end(uint64_t id, Finish finish, const Status& status) {
  const auto found = serving_.find(id);
  if (found == serving_.end()) return;
  const Served served = std::move(found->second);
  serving_.erase(found);
  granted_ = granted_ - served.granted;
  if (!decoder_ && served.last_pass > 0) passes_.ended(id);
  if (options_.draft) options_.draft->end(id);
  served.listener.on_end(finish, status);
}

}  // namespace weft::serve
