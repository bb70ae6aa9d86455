// Replicas with local steps in one process: the production state machines and real kernels of every seat,
// with every message in a queue of which the next is drawn at random; who is lost, who follows, and who lies.
#pragma once

#include "broker/run/mean_checks.h"
#include "storage/blob_store.h"
#include "tests/pipeline/replicas_world.h"

namespace weft {

struct SeatHere {
  std::shared_ptr<const proto::AssignStage> assignment;
  std::unique_ptr<peer::StageMachine> machine;
  std::unique_ptr<peer::StageRunner> runner;
  std::unique_ptr<peer::Inbox> inbox;
  bool is_loaded = false;  // of a follower: it has what the others have
};

// One way to deal the replicas' stages, and one order of messages.
class Seats {
 public:
  Seats(const World& world, Rng& rng) : world_(world), rng_(rng) {
    local_ = {.terms = world.job.replicas, .steps = world.of.steps};
    last_ = last_inner_step(local_);
  }

  // In so many stages each at most. False: the cut is none.
  bool deal(uint32_t stages_max = 3) {
    std::vector<dag::Split> splits;
    std::vector<std::map<std::string, uint32_t>> stage_of(world_.of.replicas);
    for (uint32_t replica = 0; replica < world_.of.replicas; ++replica) {
      const uint32_t stages = 1 + static_cast<uint32_t>(rng_.below(stages_max));
      const auto dealt = dag::move_sums(world_.whole, std::span<const std::shared_ptr<const dag::Lowered>>{},
                                        test::random_stages(world_.whole, stages, rng_, false));
      auto split = dag::split(world_.whole, dealt, stages, dag::op_table());
      if (!split) return false;
      for (uint32_t s = 0; s < split->stages.size(); ++s)
        for (const dag::StateKey& key : trained_state(split->stages[s].graph, world_.job.optimizer))
          stage_of[replica][key.name] = s;
      splits.push_back(std::move(*split));
    }
    std::vector<proto::AgreedTensor> tensors;
    std::vector<uint64_t> sizes;
    for (const std::string& name : world_.weights) sizes.push_back(world_.elements(name));
    const std::vector<uint32_t> fragments = replicas::fragments_of(sizes, world_.of.fragments);
    for (uint32_t place = 0; place < world_.weights.size(); ++place) {
      const std::string& name = world_.weights[place];
      const std::vector<replicas::Part> parts = parts_of(name);
      for (const replicas::Part& part : parts) {
        proto::AgreedTensor tensor{.number = replicas::agreed_number(place, part.first), .name = name};
        tensor.fragment = fragments[place];
        do tensor.owner = static_cast<uint32_t>(rng_.below(world_.of.replicas));
        while (local_.terms.follows(tensor.owner));
        for (const auto& of_replica : stage_of) tensor.stages.push_back(of_replica.at(name));
        if (parts.size() > 1) tensor.elements = part.count;
        tensors.push_back(std::move(tensor));
      }
    }
    for (uint32_t replica = 0; replica < world_.of.replicas; ++replica)
      for (uint32_t s = 0; s < splits[replica].stages.size(); ++s)
        add({s, replica}, splits[replica], tensors);
    for (auto& [seat, here] : seats_)  // at once, or when there is nothing to follow any more
      if (is_follower(*here.assignment) && rng_.below(2) == 0)
        queue("load ", seat).push_back([this, seat] { load(seat); });
    return true;
  }

  // Replicas that are lost when so many things have happened since `begin`, with which a round ended, in this
  // order; the others agree without them after `end`, and make nothing after it. Nobody: all are told to
  // settle there, if they would not.
  struct Losses {
    uint64_t begin = 0, end = 0;
    std::map<uint64_t, uint32_t> at{};
  };
  // In the round that ends with that step the replica sends differences, or means, that are so many times
  // what they are. Once somebody refuses them it is lost.
  void lie(uint32_t replica, uint64_t end, float times, proto::Direction of = proto::Direction::Forward) {
    lie_ = Lie{replica, end, round_of(local_, end).steps_before, times, of};
  }
  // All steps, and a snapshot after the last; at random until nothing is left to be done.
  void play() { play({.end = last_}); }
  void play(const Losses& losses) {
    end_ = losses.end;
    if (losses.begin > 0) {
      advance(0, losses.begin);
      happen({});
    }
    advance(losses.begin, losses.end);
    const bool agrees = agrees_after(local_, end_);
    if (agrees) copy();
    happen(losses.at);
    if (agrees) return;
    if (left_out_.replicas.empty())
      for (auto& [seat, here] : seats_) command(seat, {.kind = proto::CommandKind::Settle, .step = end_});
    if (!too_late_) copy();
    happen({});
  }

 private:
  std::vector<replicas::Part> parts_of(const std::string& weight) const {
    const size_t elements = world_.elements(weight);
    if (!compress::is_by_parts(local_.terms.codec)) return {{0, elements}};
    return replicas::parts_of(elements, elements);
  }
  // What one seat owes of a part's mean, as all of what is owed of the tensor's.
  void keep_part(const dag::StateKey& key, const Tensor& part) {
    const dag::StateKey whole{key.owner, key.name, key.slot};
    const auto& spec = world_.whole.spec(world_.whole.find_initializer(key.name)->value);
    const auto at = state_.try_emplace(whole, spec).first;
    const replicas::Part range = parts_of(key.name).at(key.replica - 1);
    ASSERT_EQ(part.element_count(), static_cast<int64_t>(range.count));
    std::ranges::copy(part.as<float>(), at->second.mutable_as<float>().subspan(range.first).begin());
  }
  void copy() {
    for (auto& [seat, here] : seats_) {
      if (is_follower(*here.assignment)) queue("command ", seat).push_back([this, seat] { load(seat); });
      command(seat, {.kind = proto::CommandKind::CopyState, .step = end_, .with_followers = true});
    }
  }
  void load(const Seat& seat) {
    const auto at = seats_.find(seat);
    if (at == seats_.end() || std::exchange(at->second.is_loaded, true)) return;
    ok_or_fail(at->second.runner->load([&](const auto& reference) -> Result<Tensor> {
      return world_.model.weights.at(reference.key.name);
    }));
  }
  void advance(uint64_t begin, uint64_t end) {
    for (auto& [seat, here] : seats_)
      for (uint64_t step = begin; step < end;) {
        step = std::min(end, step + 4);
        command(seat, {.step = step});
      }
  }
  void happen(const std::map<uint64_t, uint32_t>& losses) {
    for (uint64_t happened = 0;; ++happened) {
      if (const auto loss = losses.find(happened); loss != losses.end()) lose(loss->second);
      for (auto& [seat, here] : seats_) react(seat, here);
      if (const auto refused = std::exchange(refused_, std::nullopt); refused && !left_out_.has(*refused))
        lose(*refused);
      std::vector<std::deque<std::function<void()>>*> ready;
      for (auto& [key, queue] : queues_)
        if (!queue.empty()) ready.push_back(&queue);
      if (ready.empty() || testing::Test::HasFailure()) return;
      auto& queue = *ready[rng_.below(ready.size())];
      const auto deliver = std::move(queue.front());
      queue.pop_front();
      now_ += std::chrono::microseconds(1);
      deliver();
    }
  }

 public:
  // After play(), without losses: the broker looks at the means of the last agreements, at a piece of each
  // tensor. Returns what it finds.
  std::vector<broker::WrongMean> look_at_means() {
    auto plan = std::make_shared<broker::PlannedRun>();
    plan->local_steps = local_;
    plan->training.batch_size = world_.job.batch_size;
    std::map<Seat, uint32_t> index;
    for (const auto& [seat, here] : seats_) {
      index.emplace(seat, static_cast<uint32_t>(index.size()));
      plan->stages.emplace_back().assignment = here.assignment;
    }
    broker::MeanChecks checks(plan, {.each = UINT32_MAX,
                                     .draw = [this] { return rng_.below(1 << 20); },
                                     .hash = &storage::sha256,
                                     .take = &replicas::take_piece});
    const auto settled = agrees_after(local_, end_) ? std::nullopt : std::optional(end_);
    for (const auto& [seat, reports] : reports_)
      for (const proto::StepReport& report : reports)
        ok_or_fail(checks.hear(index.at(seat), report, settled));
    for (const proto::MeanCheck& check : checks.draw(end_, settled)) {
      proto::Command asked{.kind = proto::CommandKind::CheckMean, .step = end_, .check = check};
      for (auto& [seat, here] : seats_) command(seat, asked);
      asked.sequence = sequences_.begin()->second;
      checks.begin(asked);
    }
    happen({});
    std::vector<broker::WrongMean> found;
    for (const auto& [seat, piece] : std::exchange(pieces_, {})) {
      EXPECT_TRUE(checks.awaits(index.at(seat), piece.sequence));
      if (auto wrong = checks.on_report(index.at(seat), piece)) found.push_back(std::move(*wrong));
    }
    EXPECT_TRUE(checks.empty()) << "somebody shows nothing";
    return found;
  }
  const State& state() const { return state_; }
  const replicas::LocalSteps& local() const { return local_; }
  bool was_too_late() const { return too_late_; }
  size_t lost() const { return left_out_.replicas.size(); }
  size_t refusals() const { return refusals_; }
  // Each seat has reported each inner step once, in order, with the samples that are its replica's.
  void expect_reports() const {
    for (const auto& [seat, reports] : reports_) {
      SCOPED_TRACE(to_string(seat));
      ASSERT_EQ(reports.size(), end_);
      for (uint64_t inner = 1; inner <= end_; ++inner) {
        const proto::StepReport& report = reports[inner - 1];
        EXPECT_EQ(report.step, inner);
        const auto own = own_step(local_, seat.replica, inner);
        EXPECT_TRUE(own || (report.losses.empty() && report.sample_positions.empty()));
        EXPECT_TRUE(!own || report.sample_positions.empty() ||
                    report.sample_positions.front() == (own->step - 1) * world_.job.batch_size);
      }
    }
  }

 private:
  void add(const Seat& seat, const dag::Split& split, const std::vector<proto::AgreedTensor>& tensors) {
    auto assignment = std::make_shared<proto::AssignStage>();
    assignment->run = assignment->plan_version = 1;
    assignment->seat = seat;
    assignment->stage_count = static_cast<uint32_t>(split.stages.size());
    static_cast<dag::TrainingTerms&>(assignment->training) = world_.job;
    assignment->training.steps = last_;
    assignment->microbatches_in_flight = 1 + static_cast<uint32_t>(rng_.below(kMicrobatches));
    proto::StageProgram program;
    program.graph = std::make_shared<const Graph>(split.stages[seat.stage].graph);
    program.segment_of_op = split.stages[seat.stage].segment_of_op;
    program.segment_count = split.stages[seat.stage].segment_count;
    std::set<uint32_t> received;
    for (uint32_t e = 0; e < split.cut_edges.size(); ++e) {
      const auto& edge = split.cut_edges[e];
      if (edge.to_stage == seat.stage) {
        program.receives.push_back({e, edge.received, edge.from_stage});
        received.insert(edge.received.index);
      }
      if (edge.from_stage == seat.stage) program.sends.push_back({e, edge.sent, edge.to_stage});
    }
    for (const auto input : program.graph->inputs())
      if (!received.contains(input.index)) program.data_inputs.push_back(program.graph->value(input).name);
    for (const auto& initializer : program.graph->initializers())
      assignment->tensors.push_back({weight_key(initializer), program.graph->spec(initializer.value), {}});
    assignment->programs.push_back(std::move(program));
    assignment->local.emplace().steps = local_;
    assignment->local->norm_bound = 10;
    for (const proto::AgreedTensor& tensor : tensors)
      if (tensor.stages[seat.replica] == seat.stage) assignment->local->tensors.push_back(tensor);
    SeatHere here{.assignment = assignment,
                  .machine = std::make_unique<peer::StageMachine>(assignment),
                  .runner = value_or_fail(peer::StageRunner::create(
                      assignment,
                      [&](const auto& reference) -> Result<Tensor> {
                        return world_.model.weights.at(reference.key.name);
                      },
                      *world_.backend)),
                  .inbox = std::make_unique<peer::Inbox>(assignment)};
    seats_.emplace(seat, std::move(here));
  }

  std::deque<std::function<void()>>& queue(const std::string& kind, const Seat& seat) {
    return queues_[kind + to_string(seat)];
  }
  void command(const Seat& seat, proto::Command command) {
    command.run = command.plan_version = 1;
    command.sequence = ++sequences_[seat];
    queue("command ", seat).push_back([this, seat, command] {
      ok_or_fail(seats_.at(seat).machine->on_command(command));
    });
  }

  // With what is under way from it, of which some comes; the others are told.
  void lose(uint32_t replica) {
    left_out_.replicas.push_back(replica);
    std::sort(left_out_.replicas.begin(), left_out_.replicas.end());
    const auto is_lost = [&](const auto& of) { return of.first.replica == replica; };
    for (const auto& [seat, here] : seats_) {
      if (seat.replica != replica) continue;
      for (const char* kind : {"command ", "data ", "task ", "norm ", "load "}) queue(kind, seat).clear();
      for (auto& [key, queue] : queues_) {
        if (key.starts_with("link " + to_string(seat) + " to ")) queue.resize(rng_.below(queue.size() + 1));
        if (key.ends_with(" to " + to_string(seat))) queue.clear();
      }
    }
    std::erase_if(reports_, is_lost);
    std::erase_if(seats_, is_lost);
    if (left_out_.replicas.size() == 1 || left_out_.has(left_out_.owner)) {
      do left_out_.owner = static_cast<uint32_t>(rng_.below(world_.of.replicas));
      while (left_out_.has(left_out_.owner) || local_.terms.follows(left_out_.owner));
    }
    for (auto& [seat, here] : seats_)
      command(seat, {.kind = proto::CommandKind::LeaveOut, .step = end_, .left_out = left_out_});
  }

  void react(const Seat& seat, SeatHere& here) {
    for (const MicrobatchKey& key : here.machine->fetches())
      queue("data ", seat).push_back([this, &here, key] {
        const uint64_t step = step_of_data(*here.assignment, key);
        peer::BulkTransfers::MicrobatchData data;
        data.tensors = world_.data(step, key.microbatch);
        here.inbox->keep(key, std::move(data));
        here.machine->on_data(key, (step - 1) * world_.job.batch_size + key.microbatch * kMicrobatchSize);
      });
    for (const proto::Message& message : here.machine->take_reports()) {
      if (const auto* report = std::get_if<proto::StepReport>(&message)) hear(seat, *report);
      if (const auto* piece = std::get_if<proto::MeanPiece>(&message)) pieces_.emplace_back(seat, *piece);
      const auto* left_out = std::get_if<proto::ReplicasLeftOut>(&message);
      too_late_ = too_late_ || (left_out != nullptr && left_out->too_late);
      if (const auto* refused = std::get_if<proto::DifferenceRefused>(&message)) {
        ++refusals_;
        ASSERT_TRUE(lie_ && refused->replica == lie_->replica) << "an honest one was refused";
        EXPECT_EQ(refused->step, lie_->end);
        EXPECT_TRUE(std::isfinite(lie_->times) ? refused->ratio > 10 : refused->ratio == 0);
        refused_ = refused->replica;
      }
    }
    for (const MicrobatchKey& key : here.machine->take_finished()) here.inbox->drop(key);
    if (const auto task = here.machine->next_task(now_)) {
      // What has come by then: other attempts may take its place.
      auto inputs = std::make_shared<peer::StageRunner::Inputs>(here.inbox->take(*task));
      queue("task ", seat).push_back([this, seat, task = *task, inputs] { run(seat, task, *inputs); });
    }
  }

  // What a broker does of a replica's norm, once all of its seats have said their squares.
  void hear(const Seat& seat, const proto::StepReport& report) {
    if (report.updated) return reports_[seat].push_back(report);
    auto& said = squares_[{seat.replica, report.step}];
    const Graph& graph = *seats_.at(seat).assignment->programs[0].graph;
    const auto names = trained_parameters(graph);
    ASSERT_EQ(names.size(), report.squares.size());
    for (size_t p = 0; p < names.size(); ++p) said.squares[names[p]] = report.squares[p];
    if (++said.seats < seats_.at(seat).assignment->stage_count) return;
    double sum = 0;
    for (const std::string& name : trained_parameters(world_.whole)) sum += said.squares.at(name);
    const proto::GradientNorm norm{1, 1, report.step, std::sqrt(sum) / kMicrobatches, false};
    for (auto& [other, here] : seats_)
      if (other.replica == seat.replica)
        queue("norm ", other).push_back([&machine = *here.machine, norm] {
          ok_or_fail(machine.on_norm(norm));
        });
  }

  void run(const Seat& seat, const Task& task, const peer::StageRunner::Inputs& inputs) {
    SeatHere& here = seats_.at(seat);
    auto output = value_or_fail(here.runner->run(task, inputs));
    const proto::StageProgram& program = here.assignment->programs[0];
    for (auto& [index, tensor] : output.sends) {
      const proto::EdgeEnd& end = program.sends[index];
      send(seat, other_end(end, seat),
           {.run = 1,
            .plan_version = 1,
            .step = task.key.step,
            .microbatch = task.key.microbatch,
            .edge = end.edge,
            .replica = static_cast<uint16_t>(seat.replica),
            .spec = tensor.spec()},
           tensor);
    }
    for (peer::SentShare& share : output.agreed)
      send(seat, share.to, share.header,
           value_or_fail(peer::decode_tensor(share.header, share.payload, world_.job.seed)));
    const uint64_t made_none = end_ - own_steps_after(local_, seat.replica, end_);
    EXPECT_TRUE(task.kind != TaskKind::Snapshot || task.skipped_steps == made_none)
        << "inner steps less updates of the replica's optimizer";
    for (auto& named : output.snapshot) {
      if (named.key.slot == dag::StateSlot::ReturnResidue && named.key.replica > 0) {
        keep_part(named.key, named.tensor);
        continue;
      }
      const auto [at, is_new] = state_.emplace(named.key, named.tensor);
      EXPECT_TRUE(is_new || is_same(at->second, named.tensor) || lie_)
          << to_string(named.key) << ": replicas disagree";
    }
    here.machine->on_task_done(now_, task, output.outcome);
  }

  bool is_lie(const Seat& from, const proto::TensorHeader& header) const {
    return lie_ && from.replica == lie_->replica && header.program == proto::ProgramKind::Agree &&
           header.direction == lie_->of && header.step == lie_->steps_before;
  }
  void send(const Seat& from, const Seat& to, const proto::TensorHeader& header, Tensor tensor) {
    if (left_out_.has(to.replica)) return;
    const bool is_wrong = is_lie(from, header);
    if (is_wrong)
      for (float& value : tensor.mutable_as<float>()) value = (value == 0 ? 1e-3F : value) * lie_->times;
    queues_["link " + to_string(from) + " to " + to_string(to)].push_back(
        [this, from, to, header, tensor, is_wrong] {
          if (seats_.at(to).machine->passes_over(from, header)) return;  // as the peer does
          if (is_wrong && !std::isfinite(lie_->times)) {                 // as the link finds it
            EXPECT_TRUE(seats_.at(to).machine->refuse_not_finite(from, header.step));
            return;
          }
          ok_or_fail(seats_.at(to).machine->on_tensor(from, header));
          seats_.at(to).inbox->keep(header, tensor);
        });
  }

 public:
  static bool is_same(const Tensor& a, const Tensor& b) {
    return a.spec() == b.spec() && std::memcmp(a.bytes().data(), b.bytes().data(), a.bytes().size()) == 0;
  }

 private:
  struct Squares {
    uint32_t seats = 0;
    std::map<std::string, double> squares;
  };
  const World& world_;
  Rng& rng_;
  replicas::LocalSteps local_;
  uint64_t last_ = 0, end_ = 0;
  std::map<Seat, uint64_t> sequences_;
  replicas::LeftOut left_out_;
  struct Lie {
    uint32_t replica = 0;
    uint64_t end = 0, steps_before = 0;
    float times = 1;
    proto::Direction of = proto::Direction::Forward;
  };
  std::optional<Lie> lie_;
  std::optional<uint32_t> refused_;  // and not lost yet
  size_t refusals_ = 0;
  bool too_late_ = false;
  Instant now_ = Instant{} + std::chrono::seconds(1);
  std::map<Seat, SeatHere> seats_;
  std::map<std::string, std::deque<std::function<void()>>> queues_;
  std::map<std::pair<uint32_t, uint64_t>, Squares> squares_;
  std::map<Seat, std::vector<proto::StepReport>> reports_;
  std::vector<std::pair<Seat, proto::MeanPiece>> pieces_;
  State state_;
};

}  // namespace weft
