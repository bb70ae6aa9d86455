// Replicas that make local steps, from a job to assignments: every seat's are such as a peer takes, together
// they are whole, and what a checkpoint has goes to the seats that it is of.
#include <gtest/gtest.h>

#include <algorithm>

#include "broker/place/assembly.h"
#include "broker/place/pace.h"
#include "broker/pool/candidates.h"
#include "broker/service/plan_worker.h"
#include "dag/state.h"
#include "proto/codec/codec.h"
#include "tests/planning/planned_net.h"

namespace weft::broker {
namespace {

using dag::StateKey;
using dag::StateSlot;
using proto::AssignStage;
using proto::ProgramKind;
using test::PlannedRunPtr;
using test::program_of;

bool is_agreed(const StateKey& key) { return is_weight(key.slot); }

DrawSecret counting() {
  return [n = uint8_t{0}]() mutable { return proto::Secret{++n}; };
}

class ReplicasPlanned : public test::PlannedNet {
 protected:
  proto::SubmitJob submit(std::vector<std::string> sets, uint32_t replicas = 2) {
    sets.push_back("replicas=" + std::to_string(replicas));
    sets.push_back("sync.every=3");
    return submit_net(sets);
  }
  // What one device would be assigned alone.
  std::shared_ptr<const dag::Graph> whole_graph() {
    const PlannedRunPtr alone = plan(test::request_for(99, submit_net(), 1));
    return program_of(*alone->stages.front().assignment, ProgramKind::Train)->graph;
  }
};

// As a peer gets it.
AssignStage received(const PlannedStage& stage) {
  const auto message = proto::decode(proto::encode(*stage.assignment));
  EXPECT_TRUE(message.has_value()) << (message ? "" : message.error().message);
  return message ? std::get<AssignStage>(*message) : AssignStage{};
}

void expect_each_is_taken(const PlannedRun& run) {
  for (const PlannedStage& stage : run.stages) {
    const AssignStage taken = received(stage);
    EXPECT_EQ(taken.seat, stage.assignment->seat);
    EXPECT_EQ(proto::encode(taken), proto::encode(*stage.assignment));
  }
}

// Each replica has each trained weight in one stage, under the number that it has in the others.
void expect_agreed(const PlannedRun& run, const dag::Graph& graph) {
  std::vector<std::string> names;
  for (const StateKey& key : dag::trained_state(graph, {}))
    if (is_agreed(key)) names.push_back(key.name);
  const uint32_t count = run.local_steps->terms.count;
  std::map<uint32_t, const proto::AgreedTensor*> first;
  std::map<uint32_t, std::set<uint32_t>> numbers;  // by replica
  for (const PlannedStage& stage : run.stages) {
    ASSERT_TRUE(stage.assignment->local.has_value());
    EXPECT_EQ(stage.assignment->local->steps, *run.local_steps);
    const plan::Seat seat = stage.assignment->seat;
    size_t held = 0;
    for (const StateKey& key :
         dag::trained_state(*program_of(*stage.assignment, ProgramKind::Train)->graph, {}))
      held += is_agreed(key);
    EXPECT_EQ(stage.assignment->local->tensors.size(), held);
    for (const proto::AgreedTensor& tensor : stage.assignment->local->tensors) {
      ASSERT_LT(tensor.number, names.size());
      EXPECT_EQ(tensor.name, names[tensor.number]);
      EXPECT_TRUE(numbers[seat.replica].insert(tensor.number).second) << tensor.name << " is twice there";
      EXPECT_EQ(tensor.stages.at(seat.replica), seat.stage);
      EXPECT_LT(tensor.owner, count);
      const auto [same, fresh] = first.try_emplace(tensor.number, &tensor);
      EXPECT_EQ(same->second->owner, tensor.owner);
      EXPECT_EQ(same->second->stages, tensor.stages);
    }
  }
  for (uint32_t replica = 0; replica < count; ++replica) EXPECT_EQ(numbers[replica].size(), names.size());
}

// One connection for two seats that send each other tensors, and none for others.
void expect_links(const PlannedRun& run) {
  std::map<plan::Seat, std::set<plan::Seat>> wanted;
  const auto meet = [&](const plan::Seat& a, const plan::Seat& b) {
    if (a == b) return;
    wanted[a].insert(b);
    wanted[b].insert(a);
  };
  for (const PlannedStage& stage : run.stages) {
    const AssignStage& assign = *stage.assignment;
    for (const proto::StageProgram& program : assign.programs)
      for (const auto* ends : {&program.sends, &program.receives})
        for (const proto::EdgeEnd& end : *ends) meet(assign.seat, {end.stage, assign.seat.replica});
    for (const proto::AgreedTensor& tensor : assign.local->tensors)
      meet(assign.seat, {tensor.stages[tensor.owner], tensor.owner});
  }
  size_t dialled = 0;
  for (const PlannedStage& stage : run.stages) {
    std::set<plan::Seat> linked;
    for (const proto::LinkRoute& link : stage.assignment->links) {
      EXPECT_TRUE(linked.insert(link.seat).second);
      const auto other = run.find(link.seat);
      ASSERT_TRUE(other.has_value());
      EXPECT_EQ(link.peer, run.stages[*other].peer);
      dialled += link.dials;
    }
    EXPECT_EQ(linked, wanted[stage.assignment->seat]) << to_string(stage.assignment->seat);
  }
  EXPECT_EQ(dialled, run.relay_tickets.size()) << "one side dials";
}

void expect_whole(const PlannedRun& run, const std::vector<plan::Seat>& seats) {
  std::vector<plan::Seat> there;
  std::set<PeerId> peers;
  std::map<uint32_t, std::multiset<uint32_t>> parameters;  // by replica
  for (const PlannedStage& stage : run.stages) {
    const AssignStage& assign = *stage.assignment;
    there.push_back(assign.seat);
    EXPECT_TRUE(peers.insert(stage.peer).second) << "a peer has two seats";
    EXPECT_EQ(assign.training.steps, last_inner_step(*run.local_steps));
    EXPECT_NE(program_of(assign, ProgramKind::Train), nullptr);
    EXPECT_TRUE(assign.seat.replica == 0 || program_of(assign, ProgramKind::Evaluate) == nullptr);
    parameters[assign.seat.replica].insert(stage.parameters.begin(), stage.parameters.end());
  }
  EXPECT_EQ(there, seats);
  EXPECT_EQ(run.training.steps, last_inner_step(*run.local_steps));
  for (uint32_t replica = 0; replica < run.local_steps->terms.count; ++replica) {
    ASSERT_EQ(parameters[replica].size(), run.parameter_count);
    uint32_t next = 0;
    for (const uint32_t parameter : parameters[replica]) EXPECT_EQ(parameter, next++);
  }
  expect_links(run);
  expect_each_is_taken(run);
}

TEST_F(ReplicasPlanned, EachOnAPeerOfItsOwn) {
  const auto request = test::request_for(1, submit({"sync.codec=int8"}), 2);
  const PlannedRunPtr run = plan(request);
  ASSERT_NE(run, nullptr);
  expect_whole(*run, {{0, 0}, {0, 1}});
  EXPECT_NE(program_of(*run->stages.front().assignment, ProgramKind::Evaluate), nullptr);
  EXPECT_GT(run->forward_microbatches, 0u);
  expect_agreed(*run, *whole_graph());
  EXPECT_TRUE(run->explanation.front().starts_with("2 replicas over 2 peers: ")) << run->explanation.front();
}

TEST_F(ReplicasPlanned, AsPipelinesOfTheirOwn) {
  const PlannedRunPtr run = plan(test::request_for(1, submit({"placement.stages=2"}), 4));
  ASSERT_NE(run, nullptr);
  expect_whole(*run, {{0, 0}, {0, 1}, {1, 0}, {1, 1}});
  expect_agreed(*run, *whole_graph());
}

// All replicas side by side: as long as the slowest by itself takes, and its part of an agreement.
TEST_F(ReplicasPlanned, OthersAreComparedByTheSlowestReplica) {
  const PlannedRunPtr run = plan(test::request_for(1, submit({"placement.stages=2"}), 4));
  ASSERT_NE(run, nullptr);
  const std::vector<Candidate> candidates = test::candidates(4);
  const plan::ClusterView cluster = assumed_cluster(candidates);
  const std::vector<uint32_t> placed{3, 0, 1, 2};
  double slowest = 0, slowest_estimate = 0;
  for (const uint32_t replica : {0u, 1u}) {
    PlannedRun own = *run;
    own.local_steps.reset();
    own.stages.clear();
    std::vector<uint32_t> own_placed;
    for (size_t s = 0; s < run->stages.size(); ++s) {
      if (run->stages[s].assignment->seat.replica != replica) continue;
      AssignStage stage = *run->stages[s].assignment;
      stage.seat.replica = 0;
      own.stages.push_back(run->stages[s]);
      own.stages.back().assignment = stage;
      own_placed.push_back(placed[s]);
    }
    const Pace pace(own, candidates, cluster);
    slowest = std::max(slowest, seconds(pace.predicted_step(own_placed)));
    slowest_estimate = std::max(slowest_estimate, pace.step_seconds(own_placed));
  }
  std::vector<plan::AgreedLoad> loads;
  for (const PlannedStage& stage : run->stages)
    for (const proto::AgreedTensor& tensor : stage.assignment->local->tensors) {
      if (stage.assignment->seat.replica != 0) continue;
      const dag::Graph& graph = *program_of(*stage.assignment, ProgramKind::Train)->graph;
      plan::AgreedLoad& load = loads.emplace_back();
      load.bytes = graph.spec(graph.find_initializer(tensor.name)->value).bytes();
      load.owner = tensor.owner;
      for (uint32_t replica = 0; replica < 2; ++replica)
        load.devices.push_back(placed[*run->find({tensor.stages[replica], replica})]);
    }
  const double agreement = plan::agreement_seconds(cluster, loads) / 3;
  EXPECT_GT(agreement, 0);
  const Pace pace(*run, candidates, cluster);
  EXPECT_NEAR(seconds(pace.predicted_step(placed)), (slowest + agreement) / 2, 1e-6) << "of the run's";
  EXPECT_NEAR(pace.step_seconds(placed), slowest_estimate + agreement, 1e-9);
}

// Every tensor that a snapshot of the run would hold, each of other bytes.
CheckpointCommitted snapshot_of(const PlannedRun& run, uint64_t step) {
  CheckpointCommitted point{.job = 1, .step = step};
  std::map<StateKey, dag::TensorSpec> specs;
  for (const PlannedStage& stage : run.stages) {
    const AssignStage& assign = *stage.assignment;
    const dag::Graph& graph = *program_of(assign, ProgramKind::Train)->graph;
    for (StateKey key : dag::trained_state(graph, assign.training.optimizer)) {
      const dag::TensorSpec spec = graph.spec(graph.find_initializer(key.name)->value);
      const uint32_t replica = assign.seat.replica;
      if (!is_weight(key.slot)) key.replica = replica;
      specs[key] = spec;
      if (key.slot != StateSlot::Value) continue;
      specs[{key.owner, key.name, StateSlot::OuterMomentum}] = spec;
      specs[{key.owner, key.name, StateSlot::Residue, replica}] = spec;
      specs[{key.owner, key.name, StateSlot::ReturnResidue}] = spec;
    }
  }
  uint8_t n = 0;
  for (const auto& [key, spec] : specs) {
    proto::TensorReference& tensor = point.tensors.emplace_back();
    tensor = {key, spec, {}};
    tensor.sha256.bytes[0] = ++n;
    tensor.sha256.bytes[1] = static_cast<uint8_t>(point.tensors.size() >> 8);
  }
  return point;
}

std::map<StateKey, Digest> tensors_of(const AssignStage& stage) {
  std::map<StateKey, Digest> tensors;
  for (const proto::TensorReference& tensor : stage.tensors) tensors[tensor.key] = tensor.sha256;
  EXPECT_EQ(tensors.size(), stage.tensors.size());
  return tensors;
}

// Of the snapshot, what the seat's own would list. Not what no snapshot has.
void expect_goes_on(const AssignStage& stage, const CheckpointCommitted& point, bool owes) {
  std::map<StateKey, Digest> wanted;
  std::set<std::string> names;
  for (const proto::AgreedTensor& tensor : stage.local->tensors) names.insert(tensor.name);
  for (const proto::TensorReference& tensor : point.tensors) {
    const StateKey& key = tensor.key;
    if (!names.contains(key.name)) continue;
    const auto agreed = std::find_if(stage.local->tensors.begin(), stage.local->tensors.end(),
                                     [&](const auto& one) { return one.name == key.name; });
    const bool shared = is_weight(key.slot) || key.slot == StateSlot::OuterMomentum;
    const bool returned = key.slot == StateSlot::ReturnResidue && owes && agreed->owner == stage.seat.replica;
    const bool own = key.slot != StateSlot::ReturnResidue && !shared && key.replica == stage.seat.replica &&
                     (owes || key.slot != StateSlot::Residue);
    if (shared || returned || own) wanted[key] = tensor.sha256;
  }
  std::map<StateKey, Digest> there = tensors_of(stage);
  std::erase_if(there, [&](const auto& entry) { return !names.contains(entry.first.name); });
  EXPECT_EQ(there, wanted) << to_string(stage.seat);
  const StageState state(stage);  // by which a peer that stands by for the seat gets what it takes
  for (const proto::TensorReference& tensor : point.tensors)
    EXPECT_TRUE(!owes || state.has(tensor.key) == wanted.contains(tensor.key)) << to_string(tensor.key);
}

TEST_F(ReplicasPlanned, ASnapshotGoesToTheSeatsThatItIsOf) {
  for (const bool owes : {true, false}) {
    SCOPED_TRACE(owes);
    StartPlanning request = test::request_for(
        1, submit({"placement.stages=2", owes ? "sync.codec=int4" : "sync.codec=dense"}), 4);
    const PlannedRunPtr first = plan(request);
    ASSERT_NE(first, nullptr);
    request.checkpoint = snapshot_of(*first, 3);
    request.checkpoint->skipped_steps = 1;
    request.microbatch_size = first->training.microbatch_size;
    const PlannedRunPtr second = plan(request);
    ASSERT_NE(second, nullptr);
    expect_each_is_taken(*second);
    for (const PlannedStage& stage : second->stages) {
      EXPECT_EQ(stage.assignment->after_step, 3u);
      EXPECT_EQ(stage.assignment->skipped_steps, 1u);
      expect_goes_on(*stage.assignment, *request.checkpoint, owes);
    }
  }
}

TEST_F(ReplicasPlanned, OthersTakeTheSameSeats) {
  StartPlanning request = test::request_for(1, submit({"placement.stages=2", "sync.codec=int4"}), 5);
  const PlannedRunPtr first = plan(request);
  ASSERT_NE(first, nullptr);
  request.previous = first;
  request.plan_version = 2;
  request.placed = {4, 3, 2, 1};
  request.checkpoint = snapshot_of(*first, 6);
  const auto again = place_stages_again(request, nullptr, 1 << 20, counting());
  ASSERT_TRUE(again.has_value()) << again.error().message;
  expect_whole(**again, {{0, 0}, {0, 1}, {1, 0}, {1, 1}});
  for (size_t s = 0; s < 4; ++s) {
    EXPECT_EQ((*again)->stages[s].peer, request.candidates[request.placed[s]].peer);
    EXPECT_EQ((*again)->stages[s].assignment->plan_version, 2u);
    expect_goes_on(*(*again)->stages[s].assignment, *request.checkpoint, true);
  }
}

// Each stage is told by which codec gradients travel, and people are.
TEST_F(ReplicasPlanned, AddUpGradientsByTheJobsCodec) {
  const PlannedRunPtr two = plan(test::request_for(
      1, submit_net({"replicas={min: 2}", "gradient_ranges=2", "sync={every: step, codec: int8}"}), 2));
  ASSERT_NE(two, nullptr);
  expect_each_is_taken(*two);
  for (const PlannedStage& stage : two->stages)
    EXPECT_EQ(compress::name(stage.assignment->exact->codec), "int8");
  EXPECT_NE(two->explanation.front().find("each step's gradients, "), std::string::npos);
  EXPECT_NE(two->explanation.front().find(" as int8, are added up in "), std::string::npos)
      << two->explanation.front();
}

// Running statistics have owners as gradients have.
TEST_F(ReplicasPlanned, AddUpRunningStatisticsToo) {
  const PlannedRunPtr two =
      plan(test::request_for(1, submit_net({"replicas={min: 2}", "gradient_ranges=2"}), 2));
  ASSERT_NE(two, nullptr);
  EXPECT_EQ(two->exact_ranges, (std::vector<uint32_t>{1, 1}));
  expect_each_is_taken(*two);
  for (const PlannedStage& stage : two->stages) {
    const auto& tensors = stage.assignment->exact->tensors;
    for (const dag::GraphOutput& output :
         program_of(*stage.assignment, ProgramKind::Train)->graph->outputs()) {
      if (output.role != dag::OutputRole::StateUpdate) continue;
      EXPECT_TRUE(std::any_of(tensors.begin(), tensors.end(), [&](const proto::AgreedTensor& tensor) {
        return tensor.name == output.name;
      })) << output.name;
    }
  }
}

// A replica that is not in the checkpoint goes on with the first one's slots, and owes nothing.
TEST_F(ReplicasPlanned, ACheckpointOfFewerReplicasIsForEach) {
  StartPlanning request = test::request_for(1, submit({"sync.codec=int4"}), 3);
  const PlannedRunPtr two = plan(request);
  ASSERT_NE(two, nullptr);
  request.checkpoint = snapshot_of(*two, 2);
  request.submission = submit({"sync.codec=int4"}, 3);
  request.job = 2;
  proto::SubmitJob begins = *request.submission;
  begins.beginning = proto::Beginning{.step = 2};
  request.submission = begins;
  const PlannedRunPtr three = plan(request);
  ASSERT_NE(three, nullptr);
  ASSERT_EQ(three->stages.size(), 3u);
  EXPECT_EQ(three->local_steps->begun_after, 2u);
  EXPECT_EQ(three->local_steps->steps, 12u);
  EXPECT_EQ(three->training.steps, last_inner_step(*three->local_steps));
  expect_each_is_taken(*three);
  std::map<StateKey, Digest> saved;
  for (const auto& tensor : request.checkpoint->tensors) saved[tensor.key] = tensor.sha256;
  for (const PlannedStage& stage : three->stages) {
    EXPECT_EQ(stage.assignment->after_step, 2u);
    const uint32_t replica = stage.assignment->seat.replica;
    size_t slots = 0, owed = 0;
    for (const auto& [key, sha256] : tensors_of(*stage.assignment)) {
      StateKey from = key;
      if (from.replica == 2) from.replica = 0;
      slots += key.slot == StateSlot::Momentum;
      owed += key.slot == StateSlot::Residue;
      if (key.slot == StateSlot::Momentum || key.slot == StateSlot::Residue) {
        EXPECT_EQ(key.replica, replica);
      }
      EXPECT_TRUE(!saved.contains(from) || sha256 == saved[from]) << to_string(key);
    }
    EXPECT_EQ(slots, three->parameter_count);
    EXPECT_EQ(owed, replica < 2 ? three->parameter_count : 0);
  }
  begins.beginning->step = 12;
  request.submission = begins;
  const auto nothing = planner().plan(request, false);
  ASSERT_FALSE(nothing.has_value());
  EXPECT_EQ(nothing.error().code, ErrorCode::InvalidArgument) << nothing.error().message;
}

// As many as there are peers; where they go on from fewer, inner steps are counted from what those had made.
TEST_F(ReplicasPlanned, ComeWithThePeersThatAreThere) {
  const proto::SubmitJob grows = submit_net({"replicas={min: 1, max: 3}", "sync={every: 3, codec: int4}"});
  StartPlanning request = test::request_for(1, grows, 1);
  const PlannedRunPtr one = plan(request);
  ASSERT_NE(one, nullptr);
  ASSERT_EQ(one->local_steps->terms.count, 1u);
  EXPECT_EQ(one->replicas_max, 3u);
  request = test::request_for(1, grows, 5);
  request.plan_version = 2;
  request.microbatch_size = one->training.microbatch_size;
  request.checkpoint = snapshot_of(*one, 6);
  request.checkpoint->skipped_steps = 2;
  request.checkpoint->local = proto::LocalPoint{.steps = 6, .skipped_steps = {2}};
  const PlannedRunPtr more = plan(request);
  ASSERT_NE(more, nullptr);
  const uint32_t count = more->local_steps->terms.count;
  ASSERT_TRUE(count == 2 || count == 3) << "with the lines that are assumed more of them pay";
  EXPECT_EQ(more->local_steps->begun_after, 6u);
  expect_each_is_taken(*more);
  for (const PlannedStage& stage : more->stages) {
    EXPECT_EQ(stage.assignment->after_step, 6u);
    EXPECT_EQ(stage.assignment->skipped_steps, 2u);
  }
  // Two rounds later: of `count` replicas, each of which has made 6 steps more.
  request.plan_version = 3;
  request.checkpoint = snapshot_of(*more, 12);
  request.checkpoint->local =
      proto::LocalPoint{.steps = 6 + 6 * count, .skipped_steps = std::vector<uint64_t>(count, 2)};
  request.candidates.resize(1);
  request.cluster = assumed_cluster(request.candidates);
  const PlannedRunPtr alone = plan(request);
  ASSERT_NE(alone, nullptr);
  ASSERT_EQ(alone->local_steps->terms.count, 1u);
  EXPECT_EQ(alone->local_steps->begun_after, 6 + 6 * count);
  EXPECT_EQ(alone->stages[0].assignment->after_step, 6 + 6 * count);
  EXPECT_EQ(alone->stages[0].assignment->skipped_steps, 6 + 6 * count - 12 + 2)
      << "its optimizer has updated ten times";
  for (const auto& [key, sha256] : tensors_of(*alone->stages[0].assignment)) EXPECT_EQ(key.replica, 0u);
}

// Of two replicas, whose inner steps were counted from the sixth of the run on: one of them had lost what it
// had.
TEST_F(ReplicasPlanned, CountOnFromACheckpointThatWasCountedOtherwise) {
  StartPlanning request = test::request_for(1, submit({}), 2);
  const PlannedRunPtr first = plan(request);
  ASSERT_NE(first, nullptr);
  request.microbatch_size = first->training.microbatch_size;
  const auto planned_from = [&](uint64_t step, proto::LocalPoint point) {
    ++request.plan_version;
    request.checkpoint = snapshot_of(*first, step);
    request.checkpoint->local = std::move(point);
    return plan(request);
  };
  const PlannedRunPtr same = planned_from(3, {.steps = 6, .skipped_steps = {1, 0}});
  ASSERT_NE(same, nullptr);
  EXPECT_EQ(same->local_steps->begun_after, 0u);
  EXPECT_EQ(same->stages[0].assignment->after_step, 3u);
  EXPECT_EQ(same->stages[0].assignment->skipped_steps, 1u);
  const PlannedRunPtr heirs =
      planned_from(3, {.steps = 6, .skipped_steps = {1, 1}, .inherited = {.sets = {0, 0}}});
  ASSERT_NE(heirs, nullptr);
  EXPECT_EQ(heirs->local_steps->begun_after, 6u);
  EXPECT_EQ(heirs->stages[0].assignment->after_step, 6u);
  EXPECT_EQ(heirs->stages[0].assignment->skipped_steps, 4u) << "two updates, as it was";
  // From their first round, in their own numbers.
  const PlannedRunPtr later = planned_from(9, {.steps = 12, .skipped_steps = {4, 4}});
  ASSERT_NE(later, nullptr);
  EXPECT_EQ(later->local_steps->begun_after, 12u);
  for (const PlannedStage& stage : later->stages) {
    EXPECT_EQ(stage.assignment->after_step, 12u);
    EXPECT_EQ(stage.assignment->skipped_steps, 7u) << "five updates";
  }
}

TEST_F(ReplicasPlanned, OnlyPeersThatKnowThemSuit) {
  const auto wanted = planner().check(submit({"sync.codec=topk:0.02:int4"}));
  ASSERT_TRUE(wanted.has_value()) << wanted.error().message;
  EXPECT_EQ(wanted->peer_minor, proto::kProtocolMinorOfLocalSteps);
  const auto of_each_step = planner().check(submit_net());
  ASSERT_TRUE(of_each_step.has_value());
  EXPECT_LT(of_each_step->peer_minor, proto::kProtocolMinorOfLocalSteps);
  for (const char* several : {"replicas=2", "replicas={min: 1, max: 2}"}) {
    const auto exact = planner().check(submit_net({several}));
    ASSERT_TRUE(exact.has_value()) << exact.error().message;
    EXPECT_EQ(exact->peer_minor, proto::kProtocolMinorOfExactReplicas) << several;
    const auto dense = planner().check(submit_net({several, "sync={every: step, codec: dense}"}));
    ASSERT_TRUE(dense.has_value()) << dense.error().message;
    EXPECT_EQ(dense->peer_minor, proto::kProtocolMinorOfExactReplicas) << several;
    const auto coded = planner().check(submit_net({several, "sync={every: step, codec: int8}"}));
    ASSERT_TRUE(coded.has_value()) << coded.error().message;
    EXPECT_EQ(coded->peer_minor, proto::kProtocolMinorOfCodedGradients) << several;
  }
  const auto one = planner().check(submit_net({"sync={every: step, codec: int8}"}));
  ASSERT_TRUE(one.has_value());
  EXPECT_LT(one->peer_minor, proto::kProtocolMinorOfExactReplicas) << "one replica tells nobody anything";
}

TEST_F(ReplicasPlanned, TooFewPeersAreNamed) {
  const auto refused = planner().plan(test::request_for(1, submit({}, 3), 2), true);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::Infeasible);
  EXPECT_EQ(refused.error().message, "replicas: 3 needs 3 peers, 2 are there");
}

// What a process of its own plans comes back over its pipe as it was.
TEST_F(ReplicasPlanned, InAProcessOfItsOwn) {
  const StartPlanning request = test::request_for(1, submit({"placement.stages=2"}), 4);
  const auto process = PlanProcess::start(jobs_.process_options());
  ASSERT_TRUE(process.has_value()) << process.error().message;
  const auto there = (*process)->ask(request, {proto::PlanTask::Plan, true}, std::chrono::seconds(120));
  ASSERT_TRUE(there.has_value()) << there.error().message;
  ASSERT_NE(there->run, nullptr);
  expect_whole(*there->run, {{0, 0}, {0, 1}, {1, 0}, {1, 1}});
  EXPECT_EQ(there->feed->steps, 12u);  // of all replicas together
}

}  // namespace
}  // namespace weft::broker
