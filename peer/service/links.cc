#include "peer/service/links.h"

#include "base/check.h"
#include "peer/service/bulk.h"

namespace weft::peer {

Links::Links(LinkOptions options, std::shared_ptr<const proto::AssignStage> assignment, Handlers handlers)
    : options_(std::move(options)), assignment_(std::move(assignment)), handlers_(std::move(handlers)) {
  for (const proto::LinkRoute& route : assignment_->links) links_[route.stage].route = route;
}

void Links::start() {
  for (auto& [stage, link] : links_) {
    link.since = options_.loop->now();
    if (link.route.dials) dial(link);
  }
  if (all_up()) handlers_.on_all_up();
}

net::ConnectOptions Links::connect_options(const Link& link, const std::string& region) const {
  net::ConnectOptions options;
  options.identity = options_.identity;
  options.expected = link.route.peer;
  options.deadline = options_.address_deadline;
  if (options_.shape) options.shape = options_.shape(region);
  return options;
}

void Links::dial(Link& link) {
  while (link.next_address < link.route.addresses.size()) {
    const std::string address = link.route.addresses[link.next_address++];
    const auto endpoint = net::parse_endpoint(address);
    if (!endpoint) {
      link.problems += address + ": " + endpoint.error().message + "; ";
      continue;
    }
    link.attempt = net::connect(*options_.loop, *endpoint, connect_options(link, link.route.region),
                                [this, stage = link.route.stage, address](Result<net::ConnectionPtr> result) {
                                  on_dialled(stage, address, std::move(result));
                                });
    return;
  }
  dial_relay(link, /*initiates=*/true);
}

void Links::dial_relay(Link& link, bool initiates) {
  link.relayed = true;
  net::ConnectOptions options = connect_options(link, "");
  options.deadline = options_.ready_deadline;
  link.attempt =
      net::connect_by_relay(*options_.loop, options_.relay, {link.route.relay_ticket}, initiates, options,
                            [this, stage = link.route.stage](Result<net::ConnectionPtr> result) {
                              on_dialled(stage, "relay", std::move(result));
                            });
}

void Links::on_dialled(uint32_t stage, const std::string& where, Result<net::ConnectionPtr> result) {
  Link& link = links_.at(stage);
  if (!result) {
    link.problems += where + ": " + result.error().message + "; ";
    if (link.relayed) return down(stage, {ErrorCode::Unavailable, link.problems});
    return dial(link);
  }
  link.connection = std::move(*result);
  net::ConnectionLimits limits;
  limits.frame_size_max = proto::kTensorSizeMax + proto::kTensorHeaderSizeMax;
  link.connection->set_limits(limits);
  const std::weak_ptr<char> alive = alive_;
  link.connection->start({.on_frame =
                              [this, stage, alive](net::InFrame frame) {
                                if (!alive.expired()) on_frame(stage, frame);
                              },
                          .on_closed =
                              [this, stage, alive](const Error& error) {
                                if (!alive.expired()) down(stage, error);
                              }});
  // Who dialled introduces itself. On a relayed link, the one who asked for it.
  if (link.route.dials)
    link.connection->send(
        message_frame(proto::LinkHello{assignment_->run, assignment_->plan_version, assignment_->stage}));
}

std::optional<Links::Taken> Links::offer(const net::ConnectionPtr& connection,
                                         const proto::LinkHello& hello) {
  if (hello.run != assignment_->run || hello.plan_version != assignment_->plan_version) return std::nullopt;
  const auto at = links_.find(hello.stage);
  if (at == links_.end() || at->second.route.dials || at->second.connection ||
      at->second.route.peer != connection->remote())
    return std::nullopt;
  Link& link = at->second;
  link.connection = connection;
  net::ConnectionLimits limits;
  limits.frame_size_max = proto::kTensorSizeMax + proto::kTensorHeaderSizeMax;
  connection->set_limits(limits);
  connection->send(message_frame(proto::LinkReady{}));
  const std::weak_ptr<char> alive = alive_;
  const uint32_t stage = hello.stage;
  set_up(link);
  return Taken{[this, stage, alive](net::InFrame frame) {
                 if (!alive.expired()) on_frame(stage, frame);
               },
               [this, stage, alive](const Error& error) {
                 if (!alive.expired()) down(stage, error);
               }};
}

void Links::on_invitation(const proto::Secret& ticket) {
  for (auto& [stage, link] : links_)
    if (!link.route.dials && !link.connection && !link.attempt && link.route.relay_ticket == ticket)
      dial_relay(link, /*initiates=*/false);
}

void Links::on_frame(uint32_t stage, const net::InFrame& frame) {
  Link& link = links_.at(stage);
  if (frame.kind == static_cast<uint8_t>(proto::FrameKind::Message)) {
    const auto message = proto::decode(frame.payload.span());
    if (!message) return down(stage, message.error());
    if (link.route.dials && !link.up && std::holds_alternative<proto::LinkReady>(*message))
      return set_up(link);
    const auto* hello = std::get_if<proto::LinkHello>(&*message);
    if (!link.route.dials && !link.up && hello != nullptr && hello->run == assignment_->run &&
        hello->plan_version == assignment_->plan_version && hello->stage == stage) {  // through the relay
      link.connection->send(message_frame(proto::LinkReady{}));
      return set_up(link);
    }
    return down(stage,
                {ErrorCode::InvalidArgument, std::string(proto::name_of(*message)) + " is not for a link"});
  }
  if (frame.kind != static_cast<uint8_t>(proto::FrameKind::Tensor) || !link.up)
    return down(stage, {ErrorCode::InvalidArgument, "a frame that is not for a link"});
  const auto tensor = proto::decode_tensor(frame.payload.span());
  if (!tensor) return down(stage, tensor.error());
  handlers_.on_tensor(stage, *tensor);
}

void Links::set_up(Link& link) {
  link.up = true;
  link.attempt.reset();
  if (all_up() && !failed_) handlers_.on_all_up();
}

void Links::down(uint32_t stage, const Error& error) {
  if (failed_) return;
  failed_ = true;
  handlers_.on_down(stage, error);
}

void Links::on_tick() {
  for (auto& [stage, link] : links_)
    if (!link.up && options_.loop->now() - link.since > options_.ready_deadline)
      return down(stage, {ErrorCode::Timeout, "the link did not come up in time: " +
                                                  (link.problems.empty() ? "nobody came" : link.problems)});
}

bool Links::all_up() const {
  for (const auto& [stage, link] : links_)
    if (!link.up) return false;
  return true;
}

void Links::send(uint32_t stage, net::OutFrame frame) {
  const auto at = links_.find(stage);
  WEFT_CHECK(at != links_.end() && at->second.up);
  at->second.connection->send(std::move(frame));
}

std::vector<proto::LinkUse> Links::take_use() {
  std::vector<proto::LinkUse> uses;
  for (auto& [stage, link] : links_) {
    if (!link.connection) continue;
    const uint64_t sent = link.connection->stats().bytes_sent;
    uses.push_back({.stage = stage, .bytes_sent = sent - link.bytes_counted});
    link.bytes_counted = sent;
  }
  return uses;
}

}  // namespace weft::peer
