// Four GPUs as NVML shows them: the second does not answer, and the third is the hottest.
extern "C" {
int nvmlInit_v2() { return 0; }               // NOLINT(readability-identifier-naming): NVML's names
int nvmlShutdown() { return 0; }              // NOLINT(readability-identifier-naming)
int nvmlDeviceGetCount_v2(unsigned* count) {  // NOLINT(readability-identifier-naming)
  *count = 4;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {  // NOLINT(readability-identifier-naming)
  static unsigned devices[4];
  devices[index] = index;
  *device = &devices[index];
  return 0;
}
int nvmlDeviceGetTemperature(void* device, int sensor,
                             unsigned* celsius) {  // NOLINT(readability-identifier-naming)
  constexpr unsigned kCelsius[4] = {40, 99, 71, 65};
  const unsigned index = *static_cast<const unsigned*>(device);
  if (sensor != 0 || index == 1) return 15;
  *celsius = kCelsius[index];
  return 0;
}
}
