#include "peer/service/peer_service.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "base/overloaded.h"
#include "peer/backend/host/host_memory.h"
#include "peer/service/encoding.h"
#include "security/token.h"

namespace weft::peer {

using proto::Message;

namespace {
constexpr Duration kTickInterval = std::chrono::milliseconds(250);
constexpr Duration kLinger = std::chrono::seconds(1);
constexpr Duration kTickMin = std::chrono::milliseconds(1);
constexpr uint32_t kTasksAhead = 2;  // the compute thread has the next one before it asks (bench/task_gap.cc)
dag::TensorSpec spec_of_input(const dag::Graph& graph, const std::string& name) {
  for (const dag::ValueId input : graph.inputs())
    if (graph.value(input).name == name) return graph.spec(input);
  return {};  // decoding has looked
}
BulkTransfers::PutOptions put_options(const UploadBlob& upload) {
  return {.durable = upload.durable,
          .may_lapse = true,
          .rate = upload.rate,
          .packs = upload.packs,
          .owner = upload.generation};
}
net::ConnectOptions connect_options(const PeerServiceOptions& from) {
  net::ConnectOptions options;
  options.identity = from.identity;
  options.expected = from.broker_key;
  if (from.shape) options.shape = from.shape("");
  return options;
}
PeerEffects tell_not_finite(Peer& peer, Instant now, uint64_t generation, const plan::Seat& from,
                            const proto::TensorHeader& header) {
  const Error error = not_finite(header, from);
  if (header.program == proto::ProgramKind::Agree && header.direction == proto::Direction::Forward)
    return peer.on_difference_not_finite(now, generation, from, header.step, error);
  return peer.on_not_finite(now, generation, from, header.step, error);
}

}  // namespace

PeerService::PeerService(net::Loop& loop, PeerServiceOptions options)
    : loop_(loop),
      options_(std::move(options)),
      control_(
          loop_, options_.broker, [this] { return connect_options(options_); }, control_handlers()),
      fetcher_(loop_, blobs_, options_.weights,
               {.on_blob =
                    [this](const Digest& sha256, const Status& fetched) {
                      carry_out(peer_->on_blob(loop_.now(), sha256, fetched));
                    },
                .log = options_.log}),
      dials_(std::make_shared<DialGuard>(DialGuard::Options{
          .dials_private = options_.dials_private,
          .log = [&loop,
                  say = options_.log](const std::string& line) { loop.post([say, line] { say(line); }); },
          .now = [&loop] { return loop.now(); }})) {}

PeerService::~PeerService() = default;

Status PeerService::open() {
  WEFT_TRY_STATUS(start_links());
  std::array<uint8_t, 16> random{};
  security::fill_random(random);
  PeerOptions options;
  std::memcpy(&options_.hello.instance, random.data(), 8);
  std::memcpy(&options.session.seed, random.data() + 8, 8);
  options.session.hello = options_.hello;
  options.orphan_deadline = options_.orphan_deadline;
  if (options_.hello.device) options.bounds.stages = options_.hello.device->stages;
  options.stage.script.tasks_ahead = kTasksAhead;
  options.stage.serve.tasks_ahead = kTasksAhead;
  peer_.emplace(std::move(options));
  bulk_ = std::make_unique<BulkService>(loop_, BulkService::Options{.identity = options_.identity,
                                                                    .broker = options_.broker,
                                                                    .broker_key = options_.broker_key,
                                                                    .shape = options_.shape,
                                                                    .hello = options_.hello,
                                                                    .urgent = urgent_,
                                                                    .may_dial = may_dial()});
  start_compute();
  return {};
}

Status PeerService::start_links() {
  LinkService::Options options{
      .identity = options_.identity, .relay = options_.broker, .shape = options_.shape};
  options.accepted_shape = options_.accepted_shape;
  options.listen = options_.listen;
  options.urgent = urgent_;
  options.may_dial = may_dial();
  LinkService::Handlers handlers;
  handlers.on_all_up = [this](uint64_t generation) {
    if (is_held(generation)) carry_out(peer_->on_links_up(loop_.now(), generation));
  };
  handlers.on_down = [this](uint64_t generation, const plan::Seat& seat, const Error& error) {
    if (is_held(generation)) carry_out(peer_->on_link_failed(loop_.now(), generation, seat, error));
  };
  handlers.on_tensor = [this](uint64_t generation, const plan::Seat& from, const proto::TensorHeader& header,
                              dag::Tensor tensor) {
    if (!is_held(generation)) return;
    bool accepted = false;
    PeerEffects effects = peer_->on_tensor(loop_.now(), generation, from, header, accepted);
    if (accepted) stages_.at(generation).inbox.keep(header, std::move(tensor));
    carry_out(std::move(effects));
  };
  handlers.on_not_finite = [this](uint64_t generation, const plan::Seat& from,
                                  const proto::TensorHeader& header) {
    if (is_held(generation)) carry_out(tell_not_finite(*peer_, loop_.now(), generation, from, header));
  };
  handlers.on_probed = [this](const proto::ProbeReport& report) {
    carry_out(peer_->on_probed(loop_.now(), report));
  };
  handlers.on_get_blob = [this](const proto::GetBlob& request) { return blobs_.held(request); };
  handlers.on_giving = [this](const Digest& sha256, bool whole) {
    carry_out(peer_->on_giving(loop_.now(), sha256, whole));
  };
  WEFT_TRY(links_, LinkService::start(loop_, std::move(options), std::move(handlers)));
  if (!links_->endpoint()) return {};
  const std::string bound = net::to_string(*links_->endpoint());
  const std::string address = options_.advertise.empty() ? bound : options_.advertise;
  options_.hello.device->addresses = {address};
  log("info listening address=" + bound + " advertised=" + address);
  return {};
}

void PeerService::start_compute() {
  ComputeService::Handlers handlers;
  handlers.on_backend = [this](const Status& made) {
    if (!made) {
      result_ = made;
      return loop_.stop();
    }
    carry_out(peer_->start(loop_.now()));
    tick();
  };
  handlers.on_runner = [this](uint64_t generation, const Result<RunnerSize>& made) {
    if (made && !made->edges.empty()) links_->expect(generation, made->edges);
    carry_out(peer_->on_runner_made(loop_.now(), generation, made));
  };
  handlers.on_done = [this](uint64_t generation, const Task& task, const Result<TaskOutcome>& outcome) {
    carry_out(peer_->on_task_done(loop_.now(), generation, task, outcome));
  };
  handlers.on_hashed = [this](uint64_t generation, const Task& task,
                              std::vector<ComputeService::Hashed> hashed) {
    on_hashed(generation, task, std::move(hashed));
  };
  handlers.on_not_finite = [this](uint64_t generation, const Task& task, const dag::StateKey& key) {
    if (!is_held(generation)) return;
    const Error error{ErrorCode::OutOfRange, "after step " + std::to_string(task.key.step) + " '" +
                                                 to_string(key) + "' is not finite"};
    const plan::Seat seat = stages_.at(generation).assignment->seat;
    carry_out(peer_->on_not_finite(loop_.now(), generation, seat, task.key.step, error));
  };
  handlers.on_device = [this](const Status& answered) { carry_out(peer_->on_device(loop_.now(), answered)); };
  ComputeService::Options options{.make_backend = options_.make_backend, .on_task = options_.on_task};
  if (options_.hello.device && options_.hello.device->memory > Bytes{})
    options.memory = options_.hello.device->memory;
  compute_ = std::make_unique<ComputeService>(loop_, *links_, std::move(options), std::move(handlers));
}

Status PeerService::run() {
  WEFT_TRY_STATUS(open());
  loop_.run();
  timer_.reset();
  carrying_out_ = true;  // nothing is wanted any more
  for (const auto& [generation, stage] : std::exchange(stages_, {})) {
    drop_runner(generation);
    links_->close(generation);
  }
  // What was said last, why the stage failed perhaps, shall be heard.
  loop_.run_until(kLinger, [this] { return control_.unsent() == 0; });
  control_.drop(kLinger);
  fetcher_.reset();
  bulk_->reset();
  return result_;
}

bool PeerService::rest(Duration within) { return !compute_ || compute_->rest(within); }

void PeerService::request_drain(proto::Drain goodbye) {
  loop_.post([this, goodbye = std::move(goodbye)] {
    if (peer_) carry_out(peer_->request_drain(loop_.now(), goodbye));
  });
}

void PeerService::woke(Duration slept) {
  loop_.post([this, slept] {
    if (!peer_) return;
    const auto length = std::chrono::round<std::chrono::seconds>(slept).count();
    const Error error{ErrorCode::Unavailable, "this machine slept for " + std::to_string(length) + " s"};
    links_->lose_connections(error);
    carry_out(peer_->on_lost(loop_.now(), error));
    drop_control();
  });
}

void PeerService::stop() { loop_.stop(); }

void PeerService::tick() {
  timer_.reset();
  carry_out(peer_->on_tick(loop_.now(), options_.memory_free ? options_.memory_free() : Bytes{}));
  arm_timer();
}

// The machine's deadlines are kept more exactly than by the ticks.
void PeerService::arm_timer() {
  const Instant now = loop_.now();
  Instant at = now + kTickInterval;
  if (const auto deadline = peer_->next_deadline(now)) at = std::clamp(*deadline, now + kTickMin, at);
  if (timer_ && timer_at_ <= at) return;
  timer_at_ = at;
  timer_ = loop_.after(at - now, [this] { tick(); });
}

void PeerService::carry_out(PeerEffects effects) {
  for (PeerEffect& effect : effects) effects_.push_back(std::move(effect));
  if (carrying_out_) return;
  carrying_out_ = true;
  while (!effects_.empty()) {
    PeerEffect effect = std::move(effects_.front());
    effects_.pop_front();
    carry_out_one(effect);
  }
  carrying_out_ = false;
  if (timer_) arm_timer();
}

void PeerService::carry_out_one(PeerEffect& effect) {
  std::visit(
      Overloaded{
          [&](ConnectToBroker&) { control_.connect(); },
          [&](DropBroker& drop) { drop_control(drop.linger); },
          [&](TellBroker& say) { tell(std::move(say.message)); },
          [&](Leave& leave) {
            result_ = leave.why;
            loop_.stop();
          },
          [&](Say& say) { log(say.line); },
          [&](OpenLinks& open) { open_links(open); },
          [&](CloseLinks& close) { close_links(close.generation); },
          [&](InviteLink& invite) { links_->invite(invite.ticket); },
          [&](Probe& probe) { links_->probe(probe.link); },
          [&](FetchBlob& fetch) { fetcher_.fetch(fetch, *bulk_); },
          [&](ForgetBlobs& forget) { blobs_.forget(forget.blobs); },
          [&](MakeRunner& make) { make_runner(make); },
          [&](LoadRunner& load) { compute_->load(load.generation, blobs_.of(load.assignment->tensors)); },
          [&](DropRunner& drop) { drop_runner(drop.generation); },
          [&](ParkRunner& park) { compute_->park(park.generation); },
          [&](TakeRunner& take) { compute_->take_over(take.generation, take.from, take.assignment); },
          [&](AskDevice&) { compute_->ask(); },
          [&](RunTask& run) { run_task(run); },
          [&](PassRequest& request) { compute_->request(request.generation, request.what); },
          [&](FetchData& fetch) { fetch_data(fetch); },
          [&](DropMicrobatches& drop) {
            for (const MicrobatchKey& key : drop.keys) stages_.at(drop.generation).inbox.drop(key);
          },
          [&](OfferBlobs& blobs) { offer(blobs); },
          [&](UploadBlob& blob) { put(blob); },
      },
      effect);
}

// ---- the control connection

ControlConnection::Handlers PeerService::control_handlers() {
  return {.on_connected =
              [this](const std::string& address) {
                learn_reach(address);
                carry_out(peer_->on_connected(loop_.now()));
              },
          .on_connect_failed =
              [this](const Error& error) { carry_out(peer_->on_connect_failed(loop_.now(), error)); },
          .on_lost =
              [this](const Error& error) {
                carry_out(peer_->on_lost(loop_.now(), error));
                drop_control();
              },
          .on_message =
              [this](const Message& message) {
                if (const auto* assignment = std::get_if<proto::AssignStage>(&message))
                  fetcher_.learn(*assignment);
                carry_out(peer_->on_message(loop_.now(), message));
              }};
}

// Where the broker is decides where it may point.
void PeerService::learn_reach(const std::string& broker) {
  const auto remote = net::parse_endpoint(broker);
  const auto address = remote ? net::parse_ip(remote->host) : std::nullopt;
  dials_->set_reach(address ? net::reach_of(*address, net::is_own_address(*address)) : net::Reach::Public);
}

MayDial PeerService::may_dial() const {
  return [dials = dials_](const net::IpAddress& address, uint16_t port) {
    return dials->may_dial(address, port);
  };
}

void PeerService::drop_control(Duration linger) {
  control_.drop(linger);
  fetcher_.reset();
  bulk_->reset();
}

namespace {
// The machine knows for whom it waited, the links what they carried.
void add_use(std::vector<proto::LinkUse> links, proto::StepReport& step) {
  for (proto::LinkUse& link : links)
    for (const proto::LinkUse& waited : step.links)
      if (waited.seat == link.seat) link.seconds_waiting = waited.seconds_waiting;
  step.links = std::move(links);
}
}  // namespace

void PeerService::tell(Message message) {
  if (!control_.is_connected()) return;
  if (auto* step = std::get_if<proto::StepReport>(&message); step != nullptr && step->updated)
    for (const auto& [generation, stage] : stages_)
      if (stage.assignment->run == step->run) add_use(links_->take_use(generation), *step);
  work_.count(message);
  control_.tell(message);
}

// ---- what the machine wants done

void PeerService::open_links(const OpenLinks& open) {
  stages_.insert_or_assign(open.generation, Stage{open.assignment, Inbox(open.assignment)});
  links_->open(open.generation, open.assignment);
}

void PeerService::close_links(uint64_t generation) {
  links_->close(generation);
  stages_.erase(generation);
}

void PeerService::make_runner(const MakeRunner& make) {
  if (const std::string line = fetcher_.describe(*make.assignment); !line.empty()) log(line);
  std::map<Digest, net::SharedBytes> blobs;
  if (!is_follower(*make.assignment)) blobs = blobs_.of(make.assignment->tensors);
  compute_->make(make.generation, make.assignment, std::move(blobs));
}

void PeerService::drop_runner(uint64_t generation) {
  bulk_->cancel_puts(generation);
  compute_->drop(generation);
}

void PeerService::run_task(const RunTask& run) {
  compute_->run(run.generation, run.task, stages_.at(run.generation).inbox.take(run.task));
}

void PeerService::on_hashed(uint64_t generation, const Task& task,
                            std::vector<ComputeService::Hashed> hashed) {
  std::vector<proto::TensorReference> references;
  for (ComputeService::Hashed& one : hashed) {
    blobs_.keep(one.reference.sha256, std::move(one.bytes));
    references.push_back(std::move(one.reference));
  }
  carry_out(peer_->on_hashed(loop_.now(), generation, task, std::move(references)));
}

void PeerService::fetch_data(const FetchData& fetch) {
  const proto::AssignStage& assignment = *stages_.at(fetch.generation).assignment;
  const proto::StageProgram& program = program_of(assignment, fetch.key.program);
  std::vector<dag::TensorSpec> specs;
  specs.reserve(program.data_inputs.size());
  for (const std::string& name : program.data_inputs) specs.push_back(spec_of_input(*program.graph, name));
  proto::GetMicrobatch request{.run = assignment.run,
                               .data_key = assignment.data_key,
                               .program = fetch.key.program,
                               .step = step_of_data(assignment, fetch.key),
                               .microbatch = fetch.key.microbatch,
                               .inputs = program.data_inputs,
                               .narrows = true};
  bulk_->get_microbatch(
      std::move(request), std::move(specs),
      [this, key = fetch.key, generation = fetch.generation](Result<BulkTransfers::MicrobatchData> result) {
        if (!is_held(generation)) return;
        if (!result) return carry_out(peer_->on_data(loop_.now(), generation, key, fail(result.error())));
        const uint64_t position = result->sample_position;
        stages_.at(generation).inbox.keep(key, std::move(*result));
        carry_out(peer_->on_data(loop_.now(), generation, key, position));
      });
}

void PeerService::offer(const OfferBlobs& offer) {
  bulk_->missing(offer.blobs, offer.durable,
                 [this, upload = offer.upload](const Result<std::vector<Digest>>& missing) {
                   carry_out(peer_->on_missing(loop_.now(), upload, missing));
                 });
}

void PeerService::put(const UploadBlob& upload) {
  const net::SharedBytes* blob = blobs_.find(upload.sha256);
  WEFT_CHECK_MSG(blob != nullptr, "the machine names what it holds");
  BulkTransfers::PutOptions options = put_options(upload);
  options.on_sent = [this, number = upload.upload, sha256 = upload.sha256](uint64_t bytes) {
    carry_out(peer_->on_sent(loop_.now(), number, sha256, bytes));
  };
  options.base = blobs_.base(upload.base);
  bulk_->put(upload.sha256, *blob, options,
             [this, number = upload.upload, sha256 = upload.sha256](const Status& stored) {
               carry_out(peer_->on_uploaded(loop_.now(), number, sha256, stored));
             });
}

}  // namespace weft::peer
