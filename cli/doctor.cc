// weft doctor: what keeps this machine, or a peer of a broker, from working, a line for each thing looked at.
#include <fmt/format.h>

#include <algorithm>
#include <future>
#include <thread>

#include "cli/attending.h"
#include "cli/broker_address.h"
#include "cli/client.h"
#include "cli/commands.h"
#include "cli/device.h"
#include "cli/doctor/check.h"
#include "cli/doctor/machine.h"
#include "cli/doctor/named_peer.h"
#include "cli/doctor/way.h"
#include "cli/exit_codes.h"
#include "cli/json_event.h"
#include "cli/quantities.h"
#include "cli/say.h"
#include "storage/files.h"

namespace weft::cli {
namespace {
namespace fs = std::filesystem;

constexpr std::chrono::seconds kDeviceDeadline(60);  // a GPU's libraries load for some seconds
constexpr std::chrono::seconds kDiskDeadline(20);

struct DoctorOptions {
  std::string target, device = "cpu", data_dir, format = "text";
  BrokerOptions broker;
};

Result<std::string> open_device(const Device& device) {
  WEFT_TRY(const auto backend, make_backend(device));
  const auto memory = backend->memory();
  return backend->numerics_fingerprint() +
         (memory && device.cuda ? ", " + format_bytes(memory->free.value) + " free" : "");
}

// Shows each check as it comes.
class Doctor {
 public:
  explicit Doctor(const DoctorOptions& options) : options_(options) {}

  Result<int> run() {
    // What is wrong with how it was called is said before anything is looked at.
    WEFT_TRY(const Device device, parse_device(options_.device));
    WEFT_TRY_STATUS(find_target());
    look_at_machine(device);
    if (broker_)
      look_at_broker();
    else
      note("no broker was named, and there is no login: only this machine was looked at");
    return end();
  }

 private:
  bool json() const { return options_.format == "json"; }

  void tell(const Check& check) {
    if (json())
      print_event(check_event(check));
    else
      say(stdout, "{}\n", check_line(check));
    std::fflush(stdout);
    checks_.push_back(check);
  }
  void note(const std::string& text) { tell({"broker", CheckState::Ok, text}); }

  // HOST:PORT is a broker's address, and a name a peer's.
  Status find_target() {
    BrokerOptions asked = options_.broker;
    if (options_.target.find(':') != std::string::npos)
      asked.broker = options_.target;
    else
      peer_ = options_.target;
    WEFT_TRY(const BrokerOptions said, find_said(asked));
    if (said.broker.empty()) {
      if (peer_.empty()) return {};
      return fail(ErrorCode::InvalidArgument, "which broker has a peer " + peer_ +
                                                  "? say --broker HOST:PORT, or weft login; a broker's "
                                                  "address has a port, as broker.example.org:7700");
    }
    WEFT_TRY(broker_, net::parse_endpoint(said.broker));
    if (!said.token.empty()) {
      WEFT_TRY(token_, read_any_token(said.token));
    }
    return {};
  }

  fs::path peer_folder() const {
    if (!options_.data_dir.empty()) return options_.data_dir;
    const auto folder = data_folder();
    return folder ? *folder / "peer" : fs::temp_directory_path();
  }

  void look_at_machine(const Device& device) {
    const fs::path root = "/";
    tell_within(kDeviceDeadline, "device",
                [device] { return check_device(device.text, [&] { return open_device(device); }); });
    tell(check_driver(root, device.cuda.has_value()));
    tell(check_memory(root));
    tell(check_groups(root, std::max(1u, std::thread::hardware_concurrency())));
    tell(check_descriptors(root));
    tell_within(kDiskDeadline, "disk", [folder = peer_folder()] { return check_disk(folder); });
    tell(check_sleep(root));
  }

  // On a thread that ends: a backend may bind the one that opens it to a processor. What hangs keeps the
  // thread: a device, a disk of another machine's.
  void tell_within(std::chrono::seconds deadline, const std::string& name, std::function<Check()> look) {
    std::promise<Check> promise;
    auto future = promise.get_future();
    std::thread looking(
        [look = std::move(look), promise = std::move(promise)]() mutable { promise.set_value(look()); });
    if (future.wait_for(deadline) == std::future_status::ready) {
      looking.join();
      return tell(future.get());
    }
    looking.detach();
    hangs_ = true;
    tell({name, CheckState::Stops, fmt::format("it has not answered for {} s", deadline.count()),
          "look at dmesg; start the machine again"});
  }

  // A token may let in few keys: with a peer's it is shown by the key that `weft join` will have, with
  // another one by that of the login. Where none can be kept it is one for this once.
  Result<std::unique_ptr<security::Identity>> own_identity() const {
    const bool is_peer = token_ && token_->role == security::Role::Peer;
    const auto folder = is_peer ? Result<fs::path>(peer_folder()) : config_folder();
    storage::Files files;
    if (folder && token_ && files.make_directories(*folder))
      if (auto kept = security::Identity::load_or_create(*folder)) return kept;
    return security::Identity::generate();
  }

  void look_at_broker() {
    const auto identity = own_identity();
    if (!identity) return tell({"key", CheckState::Stops, identity.error().message});
    net::Loop loop;
    const auto client = look_at_way(loop,
                                    {.broker = *broker_,
                                     .token = token_,
                                     .identity = identity->get(),
                                     .unix_ms = unix_ms_now,
                                     .software = WEFT_VERSION,
                                     .measures = peer_.empty()},
                                    [this](const Check& check) { tell(check); });
    if (client && !peer_.empty()) look_at_peer(*client);
  }

  void look_at_peer(Client& client) {
    if (token_->role == security::Role::Peer)
      return tell({"peer", CheckState::Stops, "a peer's token may not ask for other peers",
                   "say --token with a submitter's"});
    const auto peers = client.ask<proto::PeerList>(proto::ListPeers{});
    const auto links = client.ask<proto::LinkList>(proto::ListLinks{});
    if (!peers) return tell({"peer", CheckState::Stops, peers.error().message, "try again"});
    for (const Check& check :
         check_peer(peer_, *peers, links.value_or(proto::LinkList{}), client.broker().software))
      tell(check);
  }

  Result<int> end() {
    if (json())
      print_event(result_event(checks_));
    else
      say(stdout, "{}\n", result_line(checks_));
    const int code = any_stops(checks_) ? kExitFailed : kExitOk;
    if (hangs_) end_at_once(code);
    return code;
  }

  const DoctorOptions& options_;
  std::optional<net::Endpoint> broker_;
  std::optional<security::Token> token_;
  std::string peer_;  // empty: this machine is looked at, and the way to the broker
  Checks checks_;
  bool hangs_ = false;  // a thread still waits
};

}  // namespace

void add_doctor(CommandLine program, Command& chosen) {
  CommandLine command = program.subcommand(
      "doctor", "look for what keeps this machine, or a peer, from working, and say what to do");
  auto options = std::make_shared<DoctorOptions>();
  command.option(
      "target", options->target,
      "a broker, HOST:PORT, or the name of a peer; default: WEFT_BROKER, or the broker of `weft login`");
  command.option("--broker", options->broker.broker, "with a peer's name: its broker, HOST:PORT");
  command.option("--token", options->broker.token,
                 "a token of any role, @FILE, or - for standard input (else WEFT_TOKEN, else `weft login`)");
  command.option("--device", options->device, "what will compute here, as weft join takes it")
      .shows_default();
  command.option("--data-dir", options->data_dir,
                 "where weft join keeps its key; default ~/.local/share/weft/peer");
  command.format(options->format);
  command.runs(chosen, [options] { return Doctor(*options).run(); });
}

}  // namespace weft::cli
