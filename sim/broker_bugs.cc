#include "sim/broker_bugs.h"

#include <memory>
#include <variant>

namespace weft::sim {

void BrokerBugs::note(const std::vector<broker::Effect>& effects) {
  if (bug_ != Bug::EffectsBeforeDurable) return;
  for (const broker::Effect& effect : effects)
    if (const auto* message = std::get_if<broker::Send>(&effect)) early_.push_back(*message);
}

std::vector<Packet> BrokerBugs::say(broker::ConnectionId connection, Packet packet) {
  const proto::Message& message = *packet.message;
  if (const auto* assignment = std::get_if<proto::AssignStage>(&message)) ++stages_assigned_[assignment->run];
  if (bug_ == Bug::CommandTwice && std::holds_alternative<proto::ResumeStage>(message))
    resumed_.insert(connection);
  if (const auto* norm = std::get_if<proto::GradientNorm>(&message);
      norm != nullptr && bug_ == Bug::WrongNorm)
    return {with_wrong_norm(*norm, packet)};
  const auto* command = std::get_if<proto::Command>(&message);
  if (command == nullptr || bug_ != Bug::CommandTwice) return {std::move(packet)};
  proto::Command copy = *command;
  std::vector<Packet> packets;
  copy.sequence += added_[connection];
  if (resumed_.erase(connection) != 0) {
    packets.push_back({.message = std::make_shared<const proto::Message>(copy)});
    ++added_[connection];
    ++copy.sequence;
  }
  packet.message = std::make_shared<const proto::Message>(copy);
  packets.push_back(std::move(packet));
  return packets;
}

// The one before.
Packet BrokerBugs::with_wrong_norm(const proto::GradientNorm& norm, Packet packet) {
  const auto run = std::pair(norm.run, norm.plan_version);
  auto wrong = norm;
  if (const auto last = last_norm_.find(run); last != last_norm_.end()) wrong.norm = last->second;
  last_norm_[run] = norm.norm;
  packet.message = std::make_shared<const proto::Message>(wrong);
  return packet;
}

void BrokerBugs::mistake(broker::StartPlanning& request) {
  if (bug_ != Bug::WrongGeneration || !request.checkpoint) return;
  auto& last = last_point_[request.job];
  const auto newest = *request.checkpoint;
  if (last.step != 0 && last.step != newest.step) request.checkpoint->tensors = last.tensors;
  last = newest;
}

bool BrokerBugs::shifts(proto::JobNumber job) {
  return bug_ == Bug::DataShifted && stages_assigned_[job] >= 1;
}

void BrokerBugs::end() {
  early_.clear();
  resumed_.clear();
  added_.clear();
}

}  // namespace weft::sim
