// Takes the steps of way.h over real sockets, and says what came of each.
#include <fmt/format.h>

#include "cli/doctor/rates.h"
#include "cli/doctor/way.h"
#include "net/dial_policy.h"

namespace weft::cli {
namespace {

constexpr size_t kAddressesMax = 8;  // of a name, that are dialled

class Way {
 public:
  Way(net::Loop& loop, const WayOptions& options, const std::function<void(Check)>& say)
      : loop_(loop), options_(options), say_(say) {}

  std::unique_ptr<Client> look() {
    if (!find_addresses() || !dial() || !hear_who_answers() || !enter()) return nullptr;
    look_at_relay();
    if (options_.measures) measure();
    return std::move(client_);
  }

 private:
  // Whether work may go on behind it.
  bool tell(const Check& check) {
    say_(check);
    return check.state != CheckState::Stops;
  }
  bool tell(const Checks& checks) {
    for (const Check& check : checks) say_(check);
    return !any_stops(checks);
  }

  bool find_addresses() {
    auto found = net::resolve(options_.broker, options_.deadline);
    const bool good = tell(check_name(options_.broker, found));
    if (good) addresses_ = std::move(*found);
    if (addresses_.size() > kAddressesMax) addresses_.resize(kAddressesMax);
    return good;
  }

  bool dial() {
    std::vector<DialledAddress> dialled;
    for (const net::Endpoint& address : addresses_) {
      dialled.push_back({address, net::connect_time(address, options_.deadline)});
      if (dialled.back().connected && !reached_) reached_ = address;
    }
    return tell(check_dials(dialled));
  }

  bool hear_who_answers() {
    std::optional<PeerId> expected;
    if (options_.token) expected = options_.token->broker;
    return tell(check_answerer(net::who_answers(*reached_, options_.deadline), expected));
  }

  bool enter() {
    if (!options_.token)
      return tell({"token", CheckState::Stops, "none was given, so the broker lets nobody in",
                   "say --token T (its owner makes one with weft token create), or weft login"});
    if (options_.token->role == security::Role::Caller) {
      say_({"token", CheckState::Ok, "a caller's: for the broker's HTTP door, which was not tried"});
      return false;
    }
    const int64_t asked = options_.unix_ms();
    auto client = Client::connect(loop_, {.address = {*reached_, *options_.token},
                                          .identity = options_.identity,
                                          .deadline = options_.deadline});
    const int64_t answered = options_.unix_ms();
    const proto::HelloAck none;
    const auto& broker = client ? (*client)->broker() : none;
    if (!tell(check_token(options_.token->role,
                          client ? Result<proto::HelloAck>(broker) : fail(client.error()))))
      return false;
    client_ = std::move(*client);
    tell(check_version(broker, options_.software));
    tell(check_clock(broker.unix_ms, asked, answered));
    tell(check_reach(broker.address, client_->connection().local_address(), [](const std::string& host) {
      const auto address = net::parse_ip(host);
      return address && net::is_own_address(*address);
    }));
    return true;
  }

  void look_at_relay() {
    net::RelayTicket ticket;
    security::fill_random(ticket.bytes);
    Error refused{ErrorCode::Timeout, "silence"};
    bool done = false;
    const auto attempt = net::connect_by_relay(loop_, *reached_, ticket, /*initiates=*/true,
                                               {.identity = options_.identity, .deadline = options_.deadline},
                                               [&](const auto& connected) {
                                                 if (!connected) refused = connected.error();
                                                 done = true;
                                               });
    loop_.run_until(options_.deadline + std::chrono::seconds(1), [&] { return done; });
    tell(check_relay(refused));
  }

  void measure() {
    const MeasuredRates rates = measure_rates(*client_, options_.deadline);
    tell(check_rate("uplink", rates.up));
    tell(check_rate("downlink", rates.down));
  }

  net::Loop& loop_;
  const WayOptions& options_;
  const std::function<void(Check)>& say_;
  std::vector<net::Endpoint> addresses_;
  std::optional<net::Endpoint> reached_;  // the first that could be dialled
  std::unique_ptr<Client> client_;
};

}  // namespace

std::unique_ptr<Client> look_at_way(net::Loop& loop, const WayOptions& options,
                                    const std::function<void(Check)>& say) {
  return Way(loop, options, say).look();
}

}  // namespace weft::cli
