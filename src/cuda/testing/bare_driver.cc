// A library that says it is a CUDA driver and has nothing else: what a driver looks like that lacks newer functions.
extern "C" int cuDriverGetVersion(int* version) {
  *version = 12040;
  return 0;
}
