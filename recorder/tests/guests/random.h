// Numbers at random, the same in each run.
static unsigned long state = 88172645463325252ul;
static unsigned long random_number(void) {
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}
