#include "tests/incremental/ring_world.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "serve/decoder.h"
#include "serve/engine.h"

namespace weft::incremental::testing {

using dag::PartRange;
using serve::Draw;
using serve::Finish;
using serve::Pass;
using serve::PassPiece;
using serve::RingEntry;
using serve::RingStage;
using serve::RowTensors;
using serve::Stage;

serve::Listener to(Told& told) {
  return {.on_token =
              [&told](const serve::Generated& generated) {
                told.draws.push_back(generated.draw);
                return true;
              },
          .on_end =
              [&told](Finish finish, const Status& status) {
                told.end = finish;
                told.status = status;
              }};
}

namespace {

bool equal(double a, double b) { return std::memcmp(&a, &b, sizeof a) == 0; }

bool equal(const Draw& a, const Draw& b) {
  return a.token == b.token && equal(a.log_probability, b.log_probability) &&
         std::equal(
             a.alternatives.begin(), a.alternatives.end(), b.alternatives.begin(), b.alternatives.end(),
             [](const auto& x, const auto& y) { return x.first == y.first && equal(x.second, y.second); });
}

class Borrowed final : public Stage {
 public:
  explicit Borrowed(Stage& stage) : stage_(stage) {}
  ~Borrowed() override {
    for (const uint64_t sequence : seen_) stage_.end(sequence);
  }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;
  Result<RowTensors> run(size_t range, std::span<const PassPiece> pieces, const RowTensors& rows) override {
    for (const PassPiece& piece : pieces) seen_.insert(piece.sequence);
    return stage_.run(range, pieces, rows);
  }
  void end(uint64_t sequence) override { stage_.end(sequence); }
  size_t sequences() const override { return stage_.sequences(); }
  Bytes bytes_of(int64_t positions) const override { return stage_.bytes_of(positions); }

 private:
  Stage& stage_;
  std::set<uint64_t> seen_;
};

}  // namespace

// Computes no position twice that has come round.
class World::Watched final : public Stage {
 public:
  Watched(World& world, std::unique_ptr<Stage> stage) : world_(world), stage_(std::move(stage)) {}
  Result<RowTensors> run(size_t range, std::span<const PassPiece> pieces, const RowTensors& rows) override {
    auto made = stage_->run(range, pieces, rows);
    for (const PassPiece& piece : pieces) {
      if (!made) break;
      int64_t& length = computed_[{piece.sequence, range}];
      world_.check_new(piece.sequence, piece.first, length);
      length = piece.first + piece.count;
    }
    return made;
  }
  void end(uint64_t sequence) override {
    for (const size_t range : {0, 1}) computed_.erase({sequence, range});
    stage_->end(sequence);
  }
  size_t sequences() const override { return stage_->sequences(); }
  Bytes bytes_of(int64_t positions) const override { return stage_->bytes_of(positions); }

 private:
  World& world_;
  std::unique_ptr<Stage> stage_;
  std::map<std::pair<uint64_t, size_t>, int64_t> computed_;
};

bool starts_with(const std::vector<Draw>& all, const std::vector<Draw>& first) {
  return first.size() <= all.size() && std::equal(first.begin(), first.end(), all.begin(),
                                                  [](const Draw& a, const Draw& b) { return equal(a, b); });
}

std::unique_ptr<Stage> Pool::borrow(const std::vector<PartRange>& ranges) {
  std::vector<uint32_t> key;
  for (const PartRange& range : ranges) key.insert(key.end(), {range.begin, range.end});
  auto& stage = stages_[key];
  if (!stage) {
    auto made =
        Stage::create(incremental_, ranges, model_.weights, std::make_shared<peer::State>(backend_), 64);
    WEFT_CHECK(made.has_value());
    stage = std::move(*made);
  }
  return std::make_unique<Borrowed>(*stage);
}

size_t Pool::sequences() const {
  size_t all = 0;
  for (const auto& [key, stage] : stages_) all += stage->sequences();
  return all;
}

std::vector<Told> Pool::on_one_machine(const std::vector<serve::Request>& requests) {
  if (!decoder_) {
    auto made =
        serve::make_cached_decoder(incremental_, model_.weights, std::make_shared<peer::State>(backend_));
    WEFT_CHECK(made.has_value());
    decoder_ = std::move(*made);
  }
  serve::Engine engine(*decoder_, {});
  std::vector<Told> told(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) WEFT_CHECK(engine.add(requests[i], to(told[i])).has_value());
  while (!engine.tick().idle) {
  }
  return told;
}

World::World(Pool& pool, std::vector<serve::Request> requests, const WorldOptions& options, uint64_t seed)
    : pool_(pool),
      requests_(std::move(requests)),
      options_(options),
      rng_(seed, 5),
      links_(std::max<size_t>(1, options.cuts.size())),
      told_(requests_.size()),
      ids_(requests_.size()),
      cancelled_(requests_.size()) {
  if (!options_.run_stage)
    options_.run_stage = [](RingStage& stage, const Pass& pass) { return stage.run(pass); };
  make_stages();
  make_entry();
}

void World::make_stages() {
  stages_.clear();
  for (size_t i = 0; i + 1 < options_.cuts.size(); ++i) stages_.push_back(make_stage(i));
}

std::unique_ptr<RingStage> World::make_stage(size_t i) {
  const PartRange range{options_.cuts[i], options_.cuts[i + 1]};
  auto own = std::make_unique<Watched>(*this, pool_.borrow({range}));
  auto stage = RingStage::create(pool_.incremental(), range, std::move(own), options_.ring);
  WEFT_CHECK(stage.has_value());
  return std::move(*stage);
}

void World::make_entry(uint64_t numbers_behind) {
  entry_.reset();
  const uint32_t parts = serve::part_count(*pool_.incremental());
  std::vector<PartRange> ranges{{0, parts}};
  if (!options_.cuts.empty()) ranges = {{0, options_.cuts.front()}, {options_.cuts.back(), parts}};
  std::unique_ptr<Stage> stage = std::make_unique<Watched>(*this, pool_.borrow(ranges));
  if (options_.entry_stage) stage = options_.entry_stage(std::move(stage));
  serve::RingOptions options = options_.ring;
  options.numbers_behind = numbers_behind;
  auto entry = RingEntry::create(pool_.incremental(), ranges, std::move(stage), options);
  WEFT_CHECK(entry.has_value());
  entry_ = std::move(*entry);
}

void World::begin() {
  const auto step = entry_->next();
  if (!step) return note("the entry begins no pass: " + step.error().message);
  is_idle_ = step->tick.idle;
  if (!step->tick.status && !options_.entry_stage)
    note("a pass of the entry failed: " + step->tick.status.error().message);
  send_history(0, step->history, entry_->edges_out());
  if (step->send) send(0, *step->send, entry_->edges_out());
}

void World::send_history(size_t link, std::vector<Pass> passes, const std::vector<dag::RowSpec>& edges) {
  for (Pass& pass : passes) {
    filled_ += serve::row_count(pass.pieces);
    if (options_.on_history) options_.on_history(pass);
    if (!pass.pieces.empty()) send(link, pass, edges);
  }
}

void World::note_round(const Pass& pass) {
  is_stale_ = is_stale_ && pass.pieces.front().is_history();
  for (const PassPiece& piece : pass.pieces)
    if (!piece.is_history())
      round_[piece.sequence] = piece.kept ? std::min(piece.first + piece.count, last_of(piece.sequence)) : 0;
}

// The position of the last token that is known: what comes round beyond it was guessed in vain.
int64_t World::last_of(uint64_t sequence) const {
  for (size_t i = 0; i < added_; ++i)
    if (ids_[i] == sequence)
      return static_cast<int64_t>(requests_[i].prompt.size() + told_[i].draws.size()) - 1;
  return 0;
}

void World::check_new(uint64_t sequence, int64_t first, int64_t computed) {
  if (first < std::min(computed, round_[sequence]))
    note("position " + std::to_string(first) + " is computed again, of which " +
         std::to_string(round_[sequence]) + " have come round");
}

void World::send(size_t link, const Pass& pass, const std::vector<dag::RowSpec>& edges) {
  const Status fits = serve::check_rows(pass, edges);
  if (!fits) return note("what is sent has another form: " + fits.error().message);
  links_[link].push_back({pass.number, serve::tensors_of(pass, edges)});
}

void World::deliver(size_t link) {
  if (links_[link].empty()) return;
  const Frame frame = std::move(links_[link].front());
  links_[link].pop_front();
  const bool to_entry = link == stages_.size();
  const auto& edges = to_entry ? entry_->edges_in() : stages_[link]->edges_in();
  const auto pass = serve::pass_from(frame.number, frame.tensors, edges, entry_->limits());
  if (!pass) return note("a frame cannot be read: " + pass.error().message);
  is_idle_ = false;
  if (to_entry) {
    const auto tick = entry_->finish(*pass);
    if (!tick) return note("the entry refuses a pass: " + tick.error().message);
    if (!tick->status && !options_.entry_stage) note("a pass failed: " + tick->status.error().message);
    return note_round(*pass);
  }
  send_history(link + 1, stages_[link]->history(*pass), stages_[link]->edges_out());
  const auto out = options_.run_stage(*stages_[link], *pass);
  if (!out) return note("a stage refuses a pass: " + out.error().message);
  if (!out->pieces.empty()) send(link + 1, *out, stages_[link]->edges_out());
}

// With what is known to have been drawn.
void World::add(size_t i) {
  serve::Request request = requests_[i];
  for (const Draw& draw : told_[i].draws) request.prompt.push_back(draw.token);
  if (request.tokens_max > 0) request.tokens_max -= static_cast<int64_t>(told_[i].draws.size());
  const auto id = entry_->add(request, to(told_[i]));
  if (!id) return note("a request is refused: " + id.error().message);
  ids_[i] = *id;
  is_idle_ = false;
}

void World::add_next() {
  if (added_ < requests_.size() && rng_.below(4) == 0) add(added_++);
}

void World::lose() {
  ++lost_;
  for (auto& link : links_) link.clear();
  if (options_.loss == Loss::Some) return lose_some();
  round_.clear();
  if (options_.loss != Loss::Passes) make_stages();
  is_idle_ = false;
  if (options_.loss != Loss::All) return entry_->restart();
  make_entry();
  add_again();
}

void World::lose_some() {
  const uint64_t behind = serve::numbers_of(lost_) + serve::kHistoryNumbers - 1;
  const size_t count = stages_.size();
  const Renewed renewed = options_.renew(rng_, count);
  const auto is_new = [&](size_t i) {
    return i == count ? renewed.entry : i >= renewed.begin && i < renewed.end;
  };
  for (size_t i = 0; i < count; ++i) {
    if (is_new(i)) stages_[i].reset();
    if (is_new(i))
      stages_[i] = make_stage(i);
    else
      stages_[i]->resume(!is_new(i + 1));
  }
  is_idle_ = false;
  is_stale_ = is_stale_ || renewed.entry;
  if (!renewed.entry) return entry_->resume(!is_new(0), behind);
  round_.clear();
  make_entry(behind);
  add_again();
}

void World::add_again() {
  for (size_t i = 0; i < added_; ++i) {
    if (told_[i].end) continue;
    if (cancelled_[i])
      told_[i].end = Finish::Cancelled;
    else
      add(i);
  }
}

void World::disturb() {
  if (options_.loss != Loss::None && lost_ < options_.losses_max && added_ > 0 && rng_.below(24) == 0) lose();
  if (!options_.cancels || added_ == 0 || rng_.below(24) != 0) return;
  const auto i = static_cast<size_t>(rng_.below(added_));
  if (told_[i].end) return;
  entry_->cancel(ids_[i]);
  cancelled_[i] = true;
  is_idle_ = false;
}

void World::move() {
  const auto what = static_cast<size_t>(rng_.below(links_.size() + 3));
  if (what < links_.size()) return deliver(what);
  if (what == links_.size()) return begin();
  if (what == links_.size() + 1) return add_next();
  disturb();
}

bool World::is_done() const {
  return added_ == requests_.size() && is_idle_ && entry_->under_way() == 0 &&
         std::all_of(links_.begin(), links_.end(), [](const auto& link) { return link.empty(); }) &&
         std::all_of(told_.begin(), told_.end(), [](const Told& told) { return told.end.has_value(); });
}

void World::check_bounds() {
  most_under_way_ = std::max(most_under_way_, entry_->under_way());
  if (entry_->under_way() > options_.ring.passes_max) note("too many passes are under way");
  if (entry_->positions() > options_.ring.positions_max)
    note("the entry grants more positions than there are");
  if (entry_->kept() > options_.ring.kept_positions_max) note("the entry keeps too many rows");
  for (const auto& stage : stages_)
    if (stage->kept() > options_.ring.kept_positions_max) note("a stage keeps too many rows");
  for (const auto& stage : stages_)
    if (stage->positions() > options_.ring.positions_max) note("a stage keeps more positions than there are");
}

std::string World::compared() {
  const std::vector<Told> wanted = pool_.on_one_machine(requests_);
  for (size_t i = 0; i < told_.size(); ++i) {
    const std::string name = "request " + std::to_string(i);
    if (!starts_with(wanted[i].draws, told_[i].draws)) return name + " has another text than on one machine";
    if (told_[i].end == Finish::Cancelled && cancelled_[i]) continue;
    if (told_[i].end == Finish::Failed && options_.entry_stage) continue;
    if (told_[i].end != wanted[i].end) return name + " has another end than on one machine";
    if (told_[i].draws.size() != wanted[i].draws.size())
      return name + " has a shorter text than on one machine";
  }
  return {};
}

size_t World::failed() const {
  return static_cast<size_t>(
      std::count_if(told_.begin(), told_.end(), [](const Told& told) { return told.end == Finish::Failed; }));
}

std::string World::run() {
  for (int moves = 0; moves < 100000 && fault_.empty() && !is_done(); ++moves) {
    move();
    check_bounds();
  }
  if (fault_.empty() && !is_done()) return "it does not come to an end";
  if (fault_.empty()) fault_ = compared();
  if (is_stale_) return fault_;  // what the entry before had is let go of with the next pass
  if (fault_.empty() && (pool_.sequences() > 0 || entry_->positions() > 0))
    return "a sequence is kept by a stage";
  for (const auto& stage : stages_)
    if (fault_.empty() && stage->positions() > 0) return "positions are kept by a stage";
  return fault_;
}

}  // namespace weft::incremental::testing
