def doubled(number):
    return 2 * number
