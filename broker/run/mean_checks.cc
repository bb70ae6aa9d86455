#include "broker/run/mean_checks.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/check.h"

namespace weft::broker {

MeanChecks::MeanChecks(std::shared_ptr<const PlannedRun> plan, const MeanCheckOptions& options)
    : plan_(std::move(plan)), inner_(*plan_), options_(options), owed_(plan_->stages.size()) {
  leaves_.assign(plan_->stages.size(), 0);
  if (!are_made()) return;
  std::map<uint32_t, Tensor> tensors;
  for (uint32_t s = 0; s < plan_->stages.size(); ++s) {
    const proto::AssignStage& stage = *plan_->stages[s].assignment;
    const auto weights = proto::agreed_weights(stage);
    leaves_[s] = proto::first_owed_piece(stage, weights, std::nullopt);
    for (const proto::AgreedWeight& weight : weights) {
      const uint32_t number = weight.tensor->number;
      Tensor& tensor = tensors[number];
      tensor.agreed = *weight.tensor;
      tensor.elements = weight.elements();
      tensor.is_statistic = weight.is_statistic;
      if (weight.is_ours) tensor.first_leaf = proto::first_owed_piece(stage, weights, number);
    }
  }
  for (auto& [number, tensor] : tensors) tensors_.push_back(std::move(tensor));
}

// The rounds on which all have agreed once they have done the step: that which ends with it, if nobody waits
// for it later; and the one before it, where that overlaps it.
std::vector<uint64_t> MeanChecks::agreements_with(uint64_t step, std::optional<uint64_t> settled) const {
  if (!are_made() || !inner_.ends_round(step)) return {};
  const replicas::LocalSteps& local = *inner_.local();
  std::vector<uint64_t> ends;
  const uint64_t before = local.begun_after + (step - 1 - local.begun_after) / terms().every * terms().every;
  if (before > local.begun_after && !agrees_after(local, before)) ends.push_back(before);
  if (step == settled || agrees_after(local, step)) ends.push_back(step);
  return ends;
}

Status MeanChecks::hear(uint32_t stage, const proto::StepReport& report, std::optional<uint64_t> settled) {
  // A step that its replica does not make has no task, and is reported while those before it are under way.
  const bool has_tasks =
      are_made() && inner_.own(inner_.replica_of(plan_->stages[stage].assignment->seat), report.step);
  for (const UnderWay& one : under_way_)
    if (has_tasks && report.step > one.step && awaits(stage, one.sequence))
      return fail(ErrorCode::InvalidArgument, "it goes on without showing what it has of a mean");
  const std::vector<uint64_t> ends = agreements_with(report.step, settled);
  if (ends.empty() || leaves_[stage] == 0) return {};
  if (report.owed.size() != ends.size())
    return fail(ErrorCode::InvalidArgument, "it does not say what it owes of the means that it took");
  constexpr size_t kKept = 4;
  for (size_t i = 0; i < ends.size(); ++i) owed_[stage][ends[i]] = report.owed[i];
  while (owed_[stage].size() > kKept) owed_[stage].erase(owed_[stage].begin());
  return {};
}

// Each piece is as likely as any other, and no tensor comes twice.
std::vector<proto::MeanCheck> MeanChecks::draw(uint64_t committed, std::optional<uint64_t> settled) {
  std::vector<proto::MeanCheck> checks;
  for (const uint64_t agreement : agreements_with(committed, settled)) {
    std::vector<size_t> left(tensors_.size());
    const replicas::OuterRound round = round_of(*inner_.local(), agreement);
    for (size_t i = 0; i < left.size(); ++i)
      if (agreement == settled || round.is_about(tensors_[i].agreed.fragment))
        left[i] = replicas::pieces_of(tensors_[i].elements);
    uint64_t pieces = 0;
    for (const size_t of_tensor : left) pieces += of_tensor;
    for (uint32_t drawn = 0; drawn < options_.each && pieces > 0; ++drawn) {
      uint64_t piece = options_.draw() % pieces;
      size_t i = 0;
      while (piece >= left[i]) piece -= left[i++];
      checks.push_back({agreement, tensors_[i].agreed.number, static_cast<uint32_t>(piece)});
      pieces -= std::exchange(left[i], 0);
    }
  }
  return checks;
}

void MeanChecks::begin(const proto::Command& command) {
  if (command.kind != proto::CommandKind::CheckMean || !inner_.are_local()) return;
  under_way_.push_back({.sequence = command.sequence, .step = command.step, .check = command.check});
  under_way_.back().shown.resize(terms().count);
}

std::optional<uint32_t> MeanChecks::stage_of(const Tensor& tensor, uint32_t replica) const {
  return terms().follows(replica) ? std::nullopt : plan_->find({tensor.agreed.stages[replica], replica});
}

namespace {

const auto* find_tensor(const auto& tensors, uint32_t number) {
  const auto at = std::find_if(tensors.begin(), tensors.end(),
                               [&](const auto& tensor) { return tensor.agreed.number == number; });
  return at == tensors.end() ? nullptr : &*at;
}

}  // namespace

bool MeanChecks::awaits(uint32_t stage, uint64_t sequence) const {
  const auto one = std::find_if(under_way_.begin(), under_way_.end(),
                                [&](const UnderWay& at) { return at.sequence == sequence; });
  const Tensor* tensor = one == under_way_.end() ? nullptr : find_tensor(tensors_, one->check.tensor);
  const uint32_t replica = inner_.replica_of(plan_->stages[stage].assignment->seat);
  return tensor != nullptr && stage_of(*tensor, replica) == stage && !one->shown[replica];
}

bool MeanChecks::is_whole(const UnderWay& one) const {
  const Tensor& tensor = *find_tensor(tensors_, one.check.tensor);
  for (uint32_t replica = 0; replica < one.shown.size(); ++replica)
    if (stage_of(tensor, replica) && !one.shown[replica]) return false;
  return true;
}

std::optional<WrongMean> MeanChecks::on_report(uint32_t stage, const proto::MeanPiece& report) {
  WEFT_CHECK(awaits(stage, report.sequence));
  const auto one = std::find_if(under_way_.begin(), under_way_.end(),
                                [&](const UnderWay& at) { return at.sequence == report.sequence; });
  one->shown[inner_.replica_of(plan_->stages[stage].assignment->seat)] = report.shown;
  if (!is_whole(*one)) return std::nullopt;
  const UnderWay whole = std::move(*one);
  under_way_.erase(one);
  return look_at(whole);
}

replicas::CheckedPiece MeanChecks::piece_of(const UnderWay& one) const {
  const Tensor& tensor = *find_tensor(tensors_, one.check.tensor);
  const replicas::OuterRound round = round_of(*inner_.local(), one.check.agreement);
  replicas::CheckedPiece piece{.codec = tensor.is_statistic ? compress::Codec{} : terms().codec,
                               .seed = plan_->stages.front().assignment->training.seed,
                               .steps_before = round.steps_before,
                               .tensor = tensor.agreed.number,
                               .range = replicas::range_of(one.check.piece, tensor.elements),
                               .owner = tensor.agreed.owner};
  for (const uint64_t steps : steps_since(*inner_.local(), one.check.agreement, tensor.agreed.fragment))
    piece.samples.push_back(steps * plan_->training.batch_size);
  const uint32_t owner = *stage_of(tensor, tensor.agreed.owner);
  const auto& roots = owed_[owner];
  if (const auto after = roots.find(one.check.agreement); after != roots.end()) {
    piece.owed_after = after->second;
    if (after != roots.begin()) piece.owed_before = std::prev(after)->second;
  }
  piece.leaf = tensor.first_leaf + one.check.piece;
  piece.leaves = leaves_[owner];
  return piece;
}

std::optional<WrongMean> MeanChecks::look_at(const UnderWay& one) {
  const Tensor& tensor = *find_tensor(tensors_, one.check.tensor);
  std::vector<const replicas::ShownPiece*> shown;
  for (const auto& piece : one.shown) shown.push_back(piece ? &*piece : nullptr);
  const replicas::MeanFinding finding =
      replicas::check_mean(piece_of(one), shown, options_.take, options_.hash);
  if (finding.is_right()) return std::nullopt;
  wrong_ = one.check.agreement;
  WrongMean wrong{.step = inner_.made(one.check.agreement),
                  .tensor = tensor.agreed.name,
                  .owner = *stage_of(tensor, tensor.agreed.owner)};
  for (const uint32_t replica : finding.wrong) wrong.wrong.push_back(*stage_of(tensor, replica));
  for (const uint32_t replica : finding.other) wrong.other.push_back(*stage_of(tensor, replica));
  return wrong;
}

bool MeanChecks::is_settled(uint64_t sequence) const {
  return std::none_of(under_way_.begin(), under_way_.end(),
                      [&](const UnderWay& one) { return one.sequence == sequence; });
}

uint64_t MeanChecks::right_up_to(uint64_t committed) const {
  if (wrong_) committed = std::min(committed, *wrong_ - 1);
  for (const UnderWay& one : under_way_) committed = std::min(committed, one.check.agreement - 1);
  return committed;
}

MissingReports MeanChecks::missing_reports() const {
  if (under_way_.empty()) return {};
  const UnderWay& first = under_way_.front();
  const Tensor& tensor = *find_tensor(tensors_, first.check.tensor);
  MissingReports missing{.is_own = true};
  for (uint32_t replica = 0; replica < first.shown.size(); ++replica)
    if (const auto stage = stage_of(tensor, replica); stage && !first.shown[replica])
      missing.stages.push_back(*stage);
  return missing;
}

}  // namespace weft::broker
